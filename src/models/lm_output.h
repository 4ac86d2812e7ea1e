// The last stage of a language model: its tokens' loss, or their logits.
#pragma once

#include "models/model.h"
#include "nn/lm_head.h"

namespace megalith {

// hidden (t, h), or this rank's (t / tp, h) under sequence parallelism: the head's input
// input  labels, weights, first term, and b and s of its context are read
// Returns the first term and token_losses (kLoss), token_losses (kTokenLosses) or logits.
ModelOutput lm_output(LmHead& lm_head, const at::Tensor& hidden, const ModelInput& input, HeadOutput head);

}  // namespace megalith

// What the last stage of a language model makes of a microbatch: the loss of its tokens, or their logits.
#pragma once

#include "models/model.h"
#include "nn/lm_head.h"

namespace megalith {

// x      (t, h), or this rank's (t / tp, h) under sequence parallelism: what the head reads
// input  its labels, weights and first term are read, and b and s of its context
// Returns the objective's first term and token_losses (kLoss), token_losses (kTokenLosses) or logits; what else a model
// tells is added by the caller.
ModelOutput lm_output(LmHead& lm_head, const at::Tensor& x, const ModelInput& input, HeadOutput head);

}  // namespace megalith

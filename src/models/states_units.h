// Models that are read for what they make of tokens, and predict nothing of it (kinds/encoder/text_vectors.h).
#pragma once

#include <vector>

#include "models/model_config.h"
#include "nn/unit.h"

namespace megalith {

// The units of such a model: those of the encoder where there is one beside a decoder, else all but the prediction
// modules and the head, and in their place the final norm. Their parameters have the names of the whole model's. What a
// chunk with the last of them gives is in its ModelOutput::boundary: kMemory of an encoder, else kStates, (t, h), and
// with a pooler kPooled (b, h).
//   has_pooler  a BERT's is one of them
std::vector<Unit> states_units(const ModelConfig& config, bool has_pooler);

}  // namespace megalith

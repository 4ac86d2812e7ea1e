// Models read for their hidden states, without predictions (kinds/encoder/text_vectors.h).
#pragma once

#include <vector>

#include "models/model_config.h"
#include "nn/unit.h"

namespace megalith {

// The encoder's units if there is a decoder too, else all but prediction modules and head, then the final norm;
// parameters keep their names. The last unit gives, in ModelOutput::boundary, kMemory of an encoder, else kStates, (t,
// h), and with a pooler kPooled (b, h).
//   has_pooler  include a BERT's
std::vector<Unit> states_units(const ModelConfig& config, bool has_pooler);

}  // namespace megalith

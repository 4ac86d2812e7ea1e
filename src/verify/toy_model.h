// A person's architecture at toy width; part of toy_config.h.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_config.h"
#include "train/config.h"
#include "verify/toy_world.h"

namespace megalith {

int64_t toy_prediction_modules(const ModelConfig& user);

// model    the person's, with the vocabulary that was derived from it or the tokenizer not yet in it
// sources  ToyLayers::sources
// Everything but max_position_embeddings, which follows from the sequence.
void shrink_model(const Resolved& user, const ToyWorld& world, const std::vector<int64_t>& sources, ModelConfig& model);

}  // namespace megalith

// Text from a model: one token after another, with keys and values kept.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "models/model.h"
#include "train/sampling.h"

namespace megalith {

struct GenerationRequest {
  std::vector<int64_t> prompt_ids;  // at least one
  int64_t max_new_tokens = 100;
  std::vector<int64_t> stop_ids;  // generation ends after one of these; empty: never
  SamplingOptions sampling;
};

// returns the new ids, the stopping one included. on_token is called with each as it is chosen; returning false ends.
// throws UserError when an id is outside the vocabulary, or prompt and new tokens exceed max_position_embeddings
std::vector<int64_t> generate_tokens(Model& model, const GenerationRequest& request, at::Device device,
                                     const std::function<bool(int64_t)>& on_token = {});

}  // namespace megalith

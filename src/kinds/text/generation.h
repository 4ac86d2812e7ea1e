// Text generation, token by token, with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "train/pipelined_model.h"
#include "train/sampling.h"

namespace megalith {

struct GenerationRequest {
  // At least one. A model with an encoder reads them there; its decoder starts from bos_token_id, or 0.
  std::vector<int64_t> prompt_ids;
  int64_t max_new_tokens = 100;
  std::vector<int64_t> stop_ids;  // generation ends after one of these; may be empty
  SamplingOptions sampling;
  // Number of identical sequences computed, of which one is read: sequence parallelism splits tokens over
  // tensor-parallel ranks, which a single token does not allow. Then pass their number.
  int64_t num_copies = 1;
};

// UserError when the prompt is empty, an id is outside the vocabulary, or prompt and new tokens exceed
// max_position_embeddings.
//   length_option  the option that gave max_new_tokens, for the remedy
void check_generation(const ModelConfig& config, const GenerationRequest& request, std::string_view length_option);

// returns the new ids, including a stop id. on_token receives each when chosen; returning false ends.
// throws what check_generation() throws
// Every rank of the model calls it, and gets the same ids.
std::vector<int64_t> generate_tokens(PipelinedModel& model, const GenerationRequest& request, at::Device device,
                                     const std::function<bool(int64_t)>& on_token = {});

}  // namespace megalith

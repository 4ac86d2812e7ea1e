// Text generation: requests, and generating one sequence at a time. For batches see text_batch.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "train/pipelined_model.h"
#include "train/sampling.h"

namespace megalith {

struct Resolved;

struct GenerationRequest {
  // At least one. Read by the encoder if the model has one; its decoder starts from bos_token_id, or 0.
  std::vector<int64_t> prompt_ids;
  int64_t max_new_tokens = 100;   // 0: only the prompt is read
  std::vector<int64_t> stop_ids;  // generation ends after one of these; may be empty
  SamplingOptions sampling;
  // Changes of logits before sampling, as in OpenAI's interface; penalties count the new tokens.
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int64_t, double> logit_bias;
  // Log-probabilities of each token and of this many others; unset: none.
  std::optional<int64_t> num_logprobs;
  bool has_prompt_logprobs = false;  // of the prompt's tokens too; needs num_logprobs

  bool changes_logits() const { return presence_penalty != 0 || frequency_penalty != 0 || !logit_bias.empty(); }
};

// A model that continues texts from left to right.
bool writes_text(const ModelConfig& config);

// UserError if the prompt is empty, an id is outside the vocabulary, or prompt and new tokens exceed
// max_position_embeddings.
//   length_option  the option that gave max_new_tokens, for the remedy
void check_generation(const ModelConfig& config, const GenerationRequest& request, std::string_view length_option);

// Ids that precede the new ones in the same text: the prompt, or none if an encoder reads it.
std::span<const int64_t> text_before(const ModelConfig& config, const GenerationRequest& request);

// Rows in a forward pass divide by this: sequence parallelism splits tokens over tensor-parallel ranks.
int64_t generation_row_multiple(const Resolved& resolved);

// Returns the new ids, including a stop id. on_token receives each when chosen; returning false ends. Throws as
// check_generation(). Collective over the model's ranks, which get the same ids.
std::vector<int64_t> generate_tokens(PipelinedModel& model, const GenerationRequest& request, int64_t row_multiple,
                                     at::Device device, const std::function<bool(int64_t)>& on_token = {});

}  // namespace megalith

// config.json rows that families share, as transformers 4 and 5 write them.
#pragma once

#include <string>
#include <vector>

#include "models/hf_rows.h"

namespace megalith {

// For every family: vocab_size, tie_word_embeddings, initializer_range, special tokens. Refuses quantised weights that
// cannot be decoded.
HfRows hf_common_rows();

// A Llama-like decoder: sizes, rotary embedding, RMSNorm, SwiGLU, no biases, no hidden dropout.
HfRows hf_decoder_rows();

// Rotary scaling by these rules: "llama3", "yarn", "linear". otherwise: rope_scaling where the key is missing.
HfRows hf_rope_rows(std::vector<std::string> rules, const Json& otherwise = nullptr);
// YaRN for latent attention.
HfRows hf_latent_rope_rows();
// Moves version 5's rope_parameters to version 4's top-level keys and rope_scaling.
Json hf_in_version_4(const Json& file);

// Window of all layers, by sliding_window: a number or null; `otherwise` where the key is missing.
HfRows hf_window_rows(std::optional<int64_t> otherwise);
void read_hf_window(const Json& file, std::optional<int64_t> otherwise, ModelConfig& config);
Json written_hf_window(const ModelConfig& config);
// Window of the layers that layer_types calls "sliding_attention"; others are global. Without layer_types every
// `every`-th layer is global, or as `key` says if the class has one.
HfRows hf_windowed_layers_rows(int64_t window, int64_t every, const std::string& key = "");
// Qwen's: use_sliding_window enables it, in layers from max_window_layers on or those named by layer_types.
HfRows hf_upper_window_rows();
// UserError for layer_types other than these and "full_attention".
void check_hf_layer_types(const Json& file, const std::vector<std::string>& others);

// no_rope_layers, which has 1 for a rotated layer; else every n-th layer is unrotated.
HfRows hf_unrotated_layers_rows();

// The balancing loss, only where the class adds it. It sums over layers and choices: balanced it is k, Megatron's 1.
HfRows hf_balance_rows(double otherwise);

// Leading dense layers, then routed experts and shared ones of a combined width.
struct HfExpertDefaults {
  int64_t num_experts, width, num_shared, num_dense;
  double scaling = 1;
};
HfRows hf_experts_after_dense_rows(const HfExpertDefaults& otherwise);
// Number of dense layers in front of those with experts. UserError for experts elsewhere.
int64_t hf_dense_layers(const ModelConfig& config);
// UserError for top-1 routing: the expert's weight would differ.
void refuse_single_expert(ModelConfig& config);

}  // namespace megalith

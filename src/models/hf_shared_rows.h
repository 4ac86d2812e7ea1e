// Rows of config.json that families share; as transformers 4 and 5 write it.
#pragma once

#include <string>
#include <vector>

#include "models/hf_rows.h"

namespace megalith {

// What every family has: vocab_size, tie_word_embeddings, initializer_range, special tokens; weights quantised in a way
// that cannot be decoded are refused.
HfRows hf_common_rows();

// A Llama-like decoder: sizes, rotary embedding, RMSNorm, SwiGLU, no biases, no hidden dropout.
HfRows hf_decoder_rows();

// Rotary scaling by these rules: "llama3", "yarn", "linear". otherwise: rope_scaling where the key is missing.
HfRows hf_rope_rows(std::vector<std::string> rules, const Json& otherwise = nullptr);
// YaRN as latent attention has it.
HfRows hf_latent_rope_rows();
// Version 5 has the rotary keys in rope_parameters, version 4 beside the others and in rope_scaling: as the latter.
Json hf_in_version_4(const Json& file);

// The window that sliding_window gives to all layers: a number, null, or what the class takes for a missing key.
HfRows hf_window_rows(std::optional<int64_t> otherwise);
void read_hf_window(const Json& file, std::optional<int64_t> otherwise, ModelConfig& config);
Json written_hf_window(const ModelConfig& config);
// The window of the layers that layer_types calls "sliding_attention", where others see everything. Where the file has
// no layer_types, every so many layers one sees everything, as the key says if the class has one.
HfRows hf_windowed_layers_rows(int64_t window, int64_t every, const std::string& key = "");
// Qwen's: used with use_sliding_window, by the layers from max_window_layers on or by those that layer_types name.
HfRows hf_upper_window_rows();
// layer_types has only these and "full_attention".
void check_hf_layer_types(const Json& file, const std::vector<std::string>& others);

// no_rope_layers, which has 1 for a layer that rotates, or every so many layers one that does not.
HfRows hf_unrotated_layers_rows();

// The loss of balanced experts, only where the class would add it. It sums over layers and choices: its balanced value
// is k, Megatron's is 1.
HfRows hf_balance_rows(double otherwise);

// Layers without experts in front; then experts, and as many shared ones' width beside them.
struct HfExpertDefaults {
  int64_t num_experts, width, num_shared, num_dense;
  double scaling = 1;
};
HfRows hf_experts_after_dense_rows(const HfExpertDefaults& otherwise);
// UserError where a token goes to one expert: its weight would be another.
void refuse_single_expert(ModelConfig& config);

}  // namespace megalith

// The parts of Hugging Face's config.json that families share: all of them, or only the Llama-like decoders; as
// transformers 4 and 5 write it.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "models/model_config.h"

namespace megalith {

// What the class of a family takes for a missing key.
struct HfDefaults {
  int64_t max_position_embeddings = 2048;
  bool allows_yarn = false;        // rotary scaling by YaRN's rule, which latent attention has
  bool allows_heads_yarn = false;  // rotary scaling by YaRN's rule, of ordinary heads
  bool allows_window = false;      // layers of the type "sliding_attention", of which read_hf_window() tells more
  bool allows_chunks = false;      // layers of the type "chunked_attention"
  bool allows_linear = false;      // rotary scaling of all wavelengths by one factor
  bool has_gelu_gates = false;     // GELU by a tanh in the MLP's gates, in the place of SiLU
  bool is_tied = false;
  double norm_epsilon = 1e-6;
  // Share of a head's channels that are rotated; unset: all, and a file that says another is refused.
  std::optional<double> partial_rotary_factor = std::nullopt;
};

// Sizes, rotary embedding (rope_theta and rope_scaling, or version 5's rope_parameters), tying, special tokens;
// RMSNorm, SwiGLU and rope, no biases, no hidden dropout. UserError names a key that is missing, wrong or cannot be
// honoured.
ModelConfig read_hf_decoder(const nlohmann::json& json, const HfDefaults& defaults);

// The window of attention in `sliding_window`: a number, null, or what the class takes for a missing key.
void read_hf_window(const nlohmann::json& json, std::optional<int64_t> otherwise, ModelConfig& config);

// The window of the layers that layer_types calls "sliding_attention", where others see everything.
// otherwise  for missing keys: the window, and the layers that have it as window_attn_skip_freq says it
// write_… gives both keys for any model.
struct HfWindowDefaults {
  int64_t window = 4096;
  std::string_view skip_freq = {};
};
void read_hf_windowed_layers(const nlohmann::json& json, const HfWindowDefaults& otherwise, ModelConfig& config);
void write_hf_windowed_layers(const ModelConfig& config, nlohmann::json& json);

// Qwen's: used with use_sliding_window, by the layers from max_window_layers on or by those that layer_types name.
// write_… gives the keys in the form that all versions read, and layer_types where only some layers have it.
void read_hf_upper_window(const nlohmann::json& json, ModelConfig& config);
void write_hf_upper_window(const ModelConfig& config, nlohmann::json& json);

// The same keys, in version 4's form, which version 5 reads too. UserError for what such a file cannot say.
nlohmann::json write_hf_decoder(const ModelConfig& config, at::ScalarType dtype);

// first_k_dense_replace: the layers in front that have no experts, when all behind them do; else UserError.
int64_t hf_dense_layers_in_front(const ModelConfig& config);

// What every family has: vocab_size, tie_word_embeddings, initializer_range, special tokens. UserError also for
// quantised weights.
struct HfCommonDefaults {
  bool is_tied = true;
};
void read_hf_common(const nlohmann::json& json, const HfCommonDefaults& defaults, ModelConfig& config);

// The same keys, and those that say who wrote the file and in which dtype.
nlohmann::json write_hf_common(const ModelConfig& config, at::ScalarType dtype);

// UserError when a size is beyond the bounds of models/model_bounds.h, by its own name; before anything is computed
// from it. What is below its least is left to those who read it. `where` names the file.
void check_hf_bounds(const nlohmann::json& json, std::string_view where);

// UserError when one is below 1.
void check_hf_sizes(std::initializer_list<int64_t> sizes);

// UserError when the key is there, not null, and differs from `honoured`: "attention_bias is true, …".
void refuse_unless(const nlohmann::json& json, std::string_view key, const nlohmann::json& honoured,
                   std::string_view why);

inline constexpr std::string_view kHfConfigFile = "config.json";

}  // namespace megalith

// See flux_config.h.
#include "models/flux_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace megalith {
void check_flux_config(const ModelConfig& config, std::vector<UserError>& errors) {
  const auto require = [&](std::string_view name, int64_t value) {
    if (value > 0) return true;
    errors.emplace_back(fmt::format("{} is {}: the model's shape is incomplete", name, value),
                        fmt::format("set {}, or take a preset such as flux_dev or a FLUX folder with load_hf", name));
    return false;
  };
  const bool has_hidden = require("hidden_size", config.hidden_size);
  const bool has_heads = require("num_attention_heads", config.num_attention_heads);
  require("num_joint_layers", config.num_joint_layers);
  require("num_single_layers", config.num_single_layers);
  if (config.model_channels % 2 != 0) {
    errors.emplace_back(fmt::format("model_channels is {}, half of which are cosines", config.model_channels),
                        "set model_channels to an even number");
  }
  if (config.in_channels % 4 != 0) {
    errors.emplace_back(fmt::format("in_channels is {}: a token is two by two latents", config.in_channels),
                        "set in_channels to a multiple of 4");
  }
  const bool is_odd = std::ranges::any_of(config.axes_dim, [](int64_t channels) { return channels % 2 != 0; });
  if (config.axes_dim.size() != 3 || is_odd) {
    errors.emplace_back(fmt::format("axes_dim is {}, expected three even numbers", fmt::join(config.axes_dim, ",")),
                        "FLUX.1 has 16,56,56");
  }
  if (!has_hidden || !has_heads) return;
  if (config.hidden_size % config.num_attention_heads != 0) {
    errors.emplace_back(fmt::format("num_attention_heads {} does not divide hidden_size {}", config.num_attention_heads,
                                    config.hidden_size),
                        "change one of them");
    return;
  }
  const int64_t channels = config.hidden_size / config.num_attention_heads;
  const int64_t rotated = std::accumulate(config.axes_dim.begin(), config.axes_dim.end(), int64_t{0});
  if (rotated != channels) {
    errors.emplace_back(
        fmt::format("axes_dim {} has {} channels, and a head {} (hidden_size {} over "
                    "num_attention_heads {})",
                    fmt::join(config.axes_dim, ","), rotated, channels, config.hidden_size, config.num_attention_heads),
        "make them equal");
  }
  if (config.ffn_hidden_size && *config.ffn_hidden_size != 4 * config.hidden_size) {
    errors.emplace_back(fmt::format("ffn_hidden_size is {}, and with model_type diffusion_model always 4 times "
                                    "hidden_size, {}",
                                    *config.ffn_hidden_size, 4 * config.hidden_size),
                        "leave ffn_hidden_size out");
  }
}

}  // namespace megalith

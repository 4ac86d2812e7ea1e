// See flux_config.h.
#include "models/flux_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace megalith {
namespace {

const std::set<std::string_view> kFluxOptions = {"num_joint_layers", "num_single_layers", "in_channels",
                                                 "context_dim",      "vec_in_dim",        "model_channels",
                                                 "axes_dim",         "theta",             "guidance_embed",
                                                 "patch_size"};
const std::set<std::string_view> kSharedOptions = {"model_type", "hidden_size", "ffn_hidden_size",
                                                   "num_attention_heads", "init_method_std"};

// Options of other models by which its layers may be described: what they are in any case.
struct Fixed {
  std::string_view name, value;
};
constexpr std::array kFixed = {
    Fixed{"attention_dropout", "0"},     Fixed{"hidden_dropout", "0"},           Fixed{"add_qkv_bias", "true"},
    Fixed{"rotary_interleaved", "true"}, Fixed{"norm_epsilon", "1e-06"},         Fixed{"qk_layernorm", "true"},
    Fixed{"is_causal", "false"},         Fixed{"position_embedding_type", "rope"}, Fixed{"openai_gelu", "true"},
};

bool is_of_flux(std::string_view name) { return kFluxOptions.contains(name) || kSharedOptions.contains(name); }

// Names and values of a struct's options that are not as in a fresh one. (Option::is_default() is about the value that
// an option was declared with.)
template <typename Options>
std::vector<std::pair<std::string, std::string>> values_that_differ(Options given) {
  Options fresh;
  const OptionSet now(given), before(fresh);
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& option : now.options()) {
    if (std::string text = option->text(); text != before.find(option->name())->text()) {
      values.emplace_back(option->name(), std::move(text));
    }
  }
  return values;
}

}  // namespace

std::vector<UserError> check_flux_config(const ModelConfig& config) {
  std::vector<UserError> errors;
  for (const auto& [name, text] : values_that_differ(config)) {
    if (is_of_flux(name) || (name == "vocab_size" && config.vocab_size == 0)) continue;
    const auto* fixed = std::ranges::find(kFixed, name, &Fixed::name);
    if (fixed == kFixed.end()) {
      errors.emplace_back(fmt::format("{} {} is of language models, and model_type is diffusion_model", name, text),
                          fmt::format("leave {} out", name));
    } else if (text != fixed->value) {
      errors.emplace_back(
          fmt::format("{} is {}, and with model_type diffusion_model always {}", name, text, fixed->value),
          fmt::format("leave {} out", name));
    }
  }
  const auto require = [&](std::string_view name, int64_t value) {
    if (value > 0) return true;
    errors.emplace_back(
        fmt::format("{} is {}: the model's shape is incomplete", name, value),
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
  if (!has_hidden || !has_heads) return errors;
  if (config.hidden_size % config.num_attention_heads != 0) {
    errors.emplace_back(fmt::format("num_attention_heads {} does not divide hidden_size {}", config.num_attention_heads,
                                    config.hidden_size),
                        "change one of them");
    return errors;
  }
  const int64_t channels = config.hidden_size / config.num_attention_heads;
  const int64_t rotated = std::accumulate(config.axes_dim.begin(), config.axes_dim.end(), int64_t{0});
  if (rotated != channels) {
    errors.emplace_back(fmt::format("axes_dim {} has {} channels, and a head {} (hidden_size {} over "
                                    "num_attention_heads {})",
                                    fmt::join(config.axes_dim, ","), rotated, channels, config.hidden_size,
                                    config.num_attention_heads),
                        "make them equal");
  }
  if (config.ffn_hidden_size && *config.ffn_hidden_size != 4 * config.hidden_size) {
    errors.emplace_back(fmt::format("ffn_hidden_size is {}, and with model_type diffusion_model always 4 times "
                                    "hidden_size, {}",
                                    *config.ffn_hidden_size, 4 * config.hidden_size),
                        "leave ffn_hidden_size out");
  }
  return errors;
}

void check_flux_options_are_meant(const ModelConfig& config, std::vector<UserError>& errors) {
  struct Visited : FluxOptions {
    void visit(OptionVisitor& v) { visit_flux(v); }
  } given;
  static_cast<FluxOptions&>(given) = config;
  for (const auto& [name, text] : values_that_differ(given)) {
    errors.emplace_back(fmt::format("{} is for model_type diffusion_model", name),
                        fmt::format("set model_type to diffusion_model, or leave {} out", name));
  }
}

std::vector<UserError> check_flux_layout(const ModelConfig& config, int64_t tp, int64_t ep) {
  std::vector<UserError> errors;
  if (config.num_attention_heads % tp != 0) {
    errors.emplace_back(fmt::format("tensor_model_parallel_size {} does not divide num_attention_heads {}", tp,
                                    config.num_attention_heads),
                        fmt::format("set tensor_model_parallel_size to a divisor of {}", config.num_attention_heads));
  }
  if (ep > 1) {
    errors.emplace_back(fmt::format("expert_model_parallel_size is {}, and the model has no experts", ep),
                        "set expert_model_parallel_size to 1");
  }
  return errors;
}

ModelConfig flux_architecture(const ModelConfig& config) {
  ModelConfig full;
  full.model_type = config.model_type;
  full.hidden_size = config.hidden_size;
  full.num_attention_heads = config.num_attention_heads;
  full.init_method_std = config.init_method_std;
  full.ffn_hidden_size = config.ffn_size();
  static_cast<FluxOptions&>(full) = config;
  return full;
}

}  // namespace megalith

#include "models/clip_text.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "models/model_bounds.h"

namespace megalith {

class ClipLayer : public FrozenModule {
 public:
  ClipLayer(const ClipTextConfig& config, const FrozenContext& context, const std::string& name)
      : num_heads_(config.num_attention_heads),
        has_quick_gelu_(config.has_quick_gelu),
        norm1_(context, name + ".layer_norm1", config.hidden_size, config.layer_norm_eps),
        q_(context, name + ".self_attn.q_proj", config.hidden_size, config.hidden_size),
        k_(context, name + ".self_attn.k_proj", config.hidden_size, config.hidden_size),
        v_(context, name + ".self_attn.v_proj", config.hidden_size, config.hidden_size),
        out_(context, name + ".self_attn.out_proj", config.hidden_size, config.hidden_size),
        norm2_(context, name + ".layer_norm2", config.hidden_size, config.layer_norm_eps),
        up_(context, name + ".mlp.fc1", config.hidden_size, config.intermediate_size),
        down_(context, name + ".mlp.fc2", config.intermediate_size, config.hidden_size) {
    for (Module* child : std::initializer_list<Module*>{&norm1_, &q_, &k_, &v_, &out_, &norm2_, &up_, &down_}) {
      register_module(*child);
    }
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor mid = x + attend(norm1_.forward(x));
    const at::Tensor inner = up_.forward(norm2_.forward(mid));
    return mid + down_.forward(has_quick_gelu_ ? inner * at::sigmoid(1.702 * inner) : at::gelu(inner));
  }

 private:
  at::Tensor attend(const at::Tensor& x) const {
    const int64_t b = x.size(0), s = x.size(1), h = x.size(2);
    const auto heads = [&](const FrozenLinear& linear) {
      return linear.forward(x).view({b, s, num_heads_, h / num_heads_}).transpose(1, 2);
    };
    const at::Tensor seen = at::scaled_dot_product_attention(heads(q_), heads(k_), heads(v_), /*attn_mask=*/{},
                                                             /*dropout_p=*/0, /*is_causal=*/true);
    return out_.forward(seen.transpose(1, 2).reshape({b, s, h}));
  }

  int64_t num_heads_;
  bool has_quick_gelu_;
  FrozenLayerNorm norm1_;
  FrozenLinear q_, k_, v_, out_;
  FrozenLayerNorm norm2_;
  FrozenLinear up_, down_;
};

ClipTextConfig read_clip_text_config(const Json& json, std::string_view where) {
  const auto type = json_get_or<std::string>(json, "model_type", "clip_text_model", where);
  if (type == "clip") return read_clip_text_config(get_member(json, "text_config", where), where);
  if (type != "clip_text_model") {
    throw UserError(fmt::format("{}: model_type is \"{}\", expected \"clip_text_model\"", where, type),
                    "give the folder of CLIP's text encoder: `text_encoder` in a FLUX folder");
  }
  std::vector<UserError> errors;
  const auto size = [&](std::string_view key, int64_t fallback, int64_t most) {
    const auto value = json_get_or<int64_t>(json, key, fallback, where);
    if (value >= 1 && value <= most) return value;
    errors.emplace_back(fmt::format("{}: {} is {}, expected 1 to {}", where, key, value, most), "correct the file");
    return int64_t{1};
  };
  ClipTextConfig config;
  // The class's defaults.
  config.vocab_size = size("vocab_size", 49408, kMostVocabulary);
  config.hidden_size = size("hidden_size", 512, kMostWidth);
  config.intermediate_size = size("intermediate_size", 2048, kMostFfnWidth);
  config.num_hidden_layers = size("num_hidden_layers", 12, kMostLayers);
  config.num_attention_heads = size("num_attention_heads", 8, kMostHeads);
  config.max_position_embeddings = size("max_position_embeddings", 77, kMostPositions);
  config.layer_norm_eps = json_get_or<double>(json, "layer_norm_eps", 1e-5, where);
  config.eos_token_id = json_get_or<int64_t>(json, "eos_token_id", 49407, where);
  if (config.hidden_size % config.num_attention_heads != 0) {
    errors.emplace_back(fmt::format("{}: num_attention_heads {} does not divide hidden_size {}", where,
                                    config.num_attention_heads, config.hidden_size),
                        "correct the file");
  }
  const auto act = json_get_or<std::string>(json, "hidden_act", "quick_gelu", where);
  config.has_quick_gelu = act == "quick_gelu";
  if (act != "quick_gelu" && act != "gelu") {
    errors.emplace_back(
        fmt::format("{}: hidden_act is \"{}\", and only \"quick_gelu\" and \"gelu\" can be honoured", where, act),
        "give CLIP's text encoder");
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

ClipText::ClipText(const ClipTextConfig& config, const FrozenContext& context)
    : config_(config),
      tokens_(context, "text_model.embeddings.token_embedding", config.vocab_size, config.hidden_size),
      positions_(context, "text_model.embeddings.position_embedding", config.max_position_embeddings,
                 config.hidden_size),
      final_norm_(context, "text_model.final_layer_norm", config.hidden_size, config.layer_norm_eps) {
  register_module(tokens_);
  register_module(positions_);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<ClipLayer>(config, context, fmt::format("text_model.encoder.layers.{}", i)));
    register_module(*layers_.back());
  }
  register_module(final_norm_);
}

ClipText::~ClipText() = default;

ClipText::Output ClipText::forward(const at::Tensor& ids) const {
  MEGALITH_CHECK(ids.size(1) <= config_.max_position_embeddings, "{} tokens, and {} positions", ids.size(1),
                 config_.max_position_embeddings);
  at::Tensor x = tokens_.forward(ids) + positions_.forward(at::arange(ids.size(1), ids.options()));
  for (const auto& layer : layers_) x = layer->forward(x);
  Output output{.states = final_norm_.forward(x)};
  const bool is_old = config_.eos_token_id == 2;
  const at::Tensor ends = is_old ? ids.argmax(1) : ids.eq(config_.eos_token_id).to(at::kInt).argmax(1);
  const at::Tensor where = ends.view({-1, 1, 1}).expand({-1, 1, x.size(2)});
  output.pooled = output.states.gather(1, where).squeeze(1);
  return output;
}

}  // namespace megalith

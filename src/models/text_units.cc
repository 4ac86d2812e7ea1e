#include "models/text_units.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/attention_chunks.h"
#include "models/token_ids.h"
#include "nn/dropout.h"
#include "nn/embedding_noise.h"

namespace megalith {

namespace {

at::Tensor inverse_frequencies(const ModelConfig& config) {
  if (config.multi_latent_attention) {
    return rotary_inverse_frequencies(config.qk_pos_emb_head_dim, config.rotary_base, config);
  }
  return rotary_inverse_frequencies(config.rotated_channels(config.head_dim()), config);
}

// A window is too short to need stretched wavelengths.
at::Tensor local_inverse_frequencies(const ModelConfig& config) {
  const RotaryOptions local = config.local(*config.rotary_base_local);
  return rotary_inverse_frequencies(config.rotated_channels(config.head_dim()), local);
}

}  // namespace

LayerViewer::LayerViewer(const ModelConfig& config, const LayerContext& context)
    : config_(config),
      dtype_(context.dtype),
      windowed_(config.layers_with_window()),
      unrotated_(config.layers_without_rotation()) {
  if (config.position_embedding() != PositionEmbedding::kRope) return;
  const at::Device device = context.buffer_device.value_or(context.device);
  inverse_frequencies_ = inverse_frequencies(config).to(device);
  if (config.rotary_base_local) local_frequencies_ = local_inverse_frequencies(config).to(device);
  multiplier_ = config.multi_latent_attention ? rotary_multiplier(config) : config.rope_scaling_multiplier();
}

at::Tensor LayerViewer::positions(const ForwardContext& forward) const {
  if (forward.position_ids.defined()) return forward.position_ids;
  const int64_t first = forward.cache == nullptr ? 0 : forward.cache->length;
  return at::arange(first, first + forward.s, inverse_frequencies_.options().dtype(at::kLong)).unsqueeze(0);
}

// Source: Nakanishi 2025, arXiv:2501.19399, as Llama 4 has it.
at::Tensor LayerViewer::query_scale(const ForwardContext& forward) const {
  if (config_.attn_temperature_scale == 0) return {};
  const auto wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor floors = (positions(forward) + 1).div(config_.attn_temperature_floor, "floor").to(wide);
  return floors.log1p_().mul_(config_.attn_temperature_scale).add_(1);
}

RotaryAngles LayerViewer::angles(const ForwardContext& forward, const at::Tensor& inverse_frequencies,
                                 double multiplier) const {
  if (!inverse_frequencies.defined()) return {};
  return compute_rotary_angles(positions(forward), inverse_frequencies, dtype_, multiplier);
}

LayerViews LayerViewer::views(const ForwardContext& context) const {
  LayerViews views;
  views.whole = {context, angles(context, inverse_frequencies_, multiplier_)};
  views.windowed = views.whole;
  views.windowed.context.mask.window = config_.attention_window();
  if (local_frequencies_.defined()) views.windowed.angles = angles(context, local_frequencies_, 1);
  if (config_.attention_chunk_size > 0) {
    const at::Device device = inverse_frequencies_.defined() ? inverse_frequencies_.device() : at::Device(at::kCPU);
    views.chunked = cut_into_chunks(context, config_.attention_chunk_size, device);
  }
  views.query_scale = query_scale(context);
  return views;
}

LayerView LayerViewer::view(const LayerViews& views, int64_t layer) const {
  const auto place = static_cast<size_t>(std::min(layer, config_.num_layers - 1));
  LayerView view = windowed_[place] == 1 ? views.windowed : views.whole;
  if (unrotated_[place] == 1) {
    view.angles = {.cos = {}, .sin = {}, .query_scale = views.query_scale};
  } else if (views.chunked && !config_.has_convolution_at(std::min(layer, config_.num_layers - 1))) {
    const int64_t window = view.context.mask.window;
    view.context.mask = *views.chunked;
    view.context.mask.window = window;
  }
  return view;
}

at::Tensor found(const ModelInput& input, const InputSpec& spec) {
  const at::Tensor* tensor = input.more.find(spec.name);
  return tensor == nullptr ? at::Tensor() : *tensor;
}

VocabularyWeights vocabulary_weights(const ModelConfig& config, const TransformerNames& names, const ModelPart& part,
                                     int64_t tp) {
  VocabularyWeight table{.name = names.embedding + ".weight",
                         .vocab = *config.vocab_size,
                         .padded_vocab = config.padded_vocab_size(tp),
                         .hidden = config.hidden_size};
  table.pipeline_ranks = part.holders(table.name);
  VocabularyWeight output = table;
  output.name = names.head + ".weight";
  output.pipeline_ranks.clear();
  // Published files repeat both tables in every prediction module.
  for (int64_t depth = 0; depth < config.num_prediction_modules(); ++depth) {
    const std::string module = fmt::format("{}.{}", names.layers, config.num_layers + depth);
    table.aliases.push_back(module + ".embed_tokens.weight");
    output.aliases.push_back(module + ".shared_head.head.weight");
  }
  if (config.untie_embeddings_and_output_weights) return {table, output};
  table.aliases.push_back(output.name);
  table.aliases.insert(table.aliases.end(), output.aliases.begin(), output.aliases.end());
  return {table, table};
}

double embedding_std(const ModelConfig& config) {
  return config.embedding_init_method_std.value_or(config.init_method_std);
}

at::Tensor embedded(const ModelConfig& config, VocabParallelEmbedding& table, const at::Tensor& tokens) {
  const at::Tensor x = table.forward(tokens);
  if (!config.scale_embeddings) return x;
  // As transformers: in bf16 sqrt(2304) is exact, 48; sqrt(3584) is 59.75.
  const double root = std::sqrt(static_cast<double>(config.hidden_size));
  return x * at::scalar_tensor(root, x.scalar_type()).item<double>();
}

void make_token_embedding(UnitModule& unit, const ModelConfig& config, const LayerContext& context,
                          const TokenEmbeddingSite& site) {
  const int64_t h = config.hidden_size;
  const double std = config.init_method_std;
  auto& table = unit.add<VocabParallelEmbedding>(context, site.weight, embedding_std(config), site.table);
  LearnedPositions* positions = nullptr;
  if (config.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    positions = &unit.add<LearnedPositions>(context, site.positions + ".weight", config.max_position_embeddings, h, std,
                                            site.shared_positions);
  }
  TokenTypes* types = nullptr;
  if (config.token_types() > 0) {
    types = &unit.add<TokenTypes>(context, site.token_types + ".weight", config.token_types(), h, std);
  }
  Norm* norm = config.embedding_norm ? &unit.add<Norm>(context, site.norm, h, config) : nullptr;
  const EmbeddingNoise noise(context, site.dropout);
  const HiddenDropout dropout(context, site.dropout, config.hidden_dropout);
  unit.forward = [=, &config, &table, number = site.side](const Streams& /*in*/, const UnitPass& pass) -> Streams {
    const TextSide& side = pass.as<TextPass>().sides[number];
    const int64_t b = side.context.b, s = side.context.s;
    const at::Tensor tokens = side.tokens.reshape({-1});
    MEGALITH_CHECK(tokens.size(0) == b * s, "{} tokens, but b {} and s {}", tokens.size(0), b, s);
    check_token_ids(tokens, *config.vocab_size);
    at::Tensor x = noise.forward(embedded(config, table, tokens), side.context);
    if (positions != nullptr) x = x + positions->forward(side.context);
    if (types != nullptr) x = x + types->forward(side.token_types, side.context);
    if (norm != nullptr) x = norm->forward(x);
    return {{dropout.forward(x, side.context), {}}};
  };
}

void make_token_embedding(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                          const LayerContext& context, const ModelPart& part, size_t side) {
  make_token_embedding(unit, config, context,
                       {.weight = vocabulary_weights(config, names, part, context.groups->tp->size()).table,
                        .positions = names.positions,
                        .token_types = names.token_types,
                        .norm = names.embedding_norm,
                        .dropout = names.embedding,
                        .side = side});
}

void make_text_layer(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                     const LayerContext& context, int64_t number, size_t side) {
  const std::string name = fmt::format("{}.{}", names.layers, number);
  auto& layer = unit.add<DecoderLayer>(context, name, config, decoder_site(config, names, number));
  unit.add_router(number, layer.router());
  // Embedding and stage boundary give one tensor, as do normed sums.
  unit.adds_inputs = !config.norms_sums();
  unit.forward = [&layer, number, side](Streams in, const UnitPass& pass) -> Streams {
    const TextPass& text = pass.as<TextPass>();
    const LayerView view = text.viewer->view(text.sides[side].views, number);
    return {layer.forward(std::move(in[0]), view.context, view.angles)};
  };
}

Norm* add_final_norm(UnitModule& unit, const ModelConfig& config, const TransformerNames& names,
                     const LayerContext& context) {
  return config.norms_sums() ? nullptr : &unit.add<Norm>(context, names.final_norm, config.hidden_size, config);
}

at::Tensor normed_end(Norm* norm, ResidualStream stream) {
  return norm != nullptr ? norm->forward(stream) : stream.sum();
}

}  // namespace megalith

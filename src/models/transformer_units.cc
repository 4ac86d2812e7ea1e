// A decoder's units and layer sites; see transformer.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/model_head.h"
#include "models/transformer.h"

namespace megalith {

std::vector<Unit> transformer_units(const ModelConfig& config, const TransformerNames& names) {
  const std::vector<std::string> hidden = {"hidden"};
  const UsedParameter table{.unit = names.embedding, .parameter = names.embedding + ".weight"};
  std::vector<Unit> units;
  units.push_back({.kind = kEmbeddingUnit, .name = names.embedding, .letter = UnitLetter::kEmbedding, .gives = hidden});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    units.push_back(layer_unit(kLayerUnit, names.layers, layer, hidden, hidden));
  }
  // Modules share the model's table; the head norms their input and computes their losses.
  for (int64_t module = 0; module < config.num_prediction_modules(); ++module) {
    units.push_back({.kind = kPredictionUnit,
                     .name = fmt::format("{}.{}", names.layers, config.num_layers + module),
                     .number = module,
                     .letter = UnitLetter::kPrediction,
                     .layers_worth = 1,
                     .reads = hidden,
                     .uses = {table},
                     .stays_with_next = true});
  }
  units.push_back({.kind = kHeadUnit, .name = names.head, .letter = UnitLetter::kHead, .reads = hidden});
  const bool is_tied = !config.untie_embeddings_and_output_weights && find_head(config.model_type) == nullptr;
  if (is_tied) units.back().uses = {table};
  return units;
}

std::vector<Unit> transformer_units(const ModelConfig& config) { return transformer_units(config, {}); }

DecoderSite decoder_site(const ModelConfig& config, const TransformerNames& names, int64_t layer) {
  // Output projections start smaller, so that the stream's variance does not grow with depth (Radford et al. 2019).
  const double output_init_std = config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  return {.names = names.layer,
          .attention = names.attention,
          .mlp = names.mlp,
          .experts = names.experts,
          .convolution = names.convolution,
          .has_experts = config.has_experts_at(layer),
          .has_convolution = config.has_convolution_at(std::min(layer, config.num_layers - 1)),
          .is_transposed = names.is_transposed,
          .output_init_std = output_init_std,
          .layer = layer};
}

}  // namespace megalith

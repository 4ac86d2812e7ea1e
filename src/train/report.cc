#include "train/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "comm/groups.h"
#include "models/families.h"
#include "nn/low_rank_adapter.h"
#include "train/adapters.h"
#include "train/frozen_weights.h"

namespace megalith {
namespace {

// Parameters a token does not use: other experts, selection biases.
int64_t idle_parameters(const ModelConfig& config) {
  int64_t idle = 0;
  for (int64_t layer = 0; layer < config.num_all_layers(); ++layer) {
    if (!config.has_experts_at(layer)) continue;
    const int64_t matrices = config.is_gated() ? 3 : 2;
    idle += (*config.num_experts - config.moe_router_topk) * matrices * config.hidden_size * config.expert_ffn_size();
    if (config.moe_router_enable_expert_bias) idle += *config.num_experts;
  }
  return idle;
}

// A router's products per token in the three passes; frozen weights have no gradient.
double router_flops(const ModelConfig& config, bool is_frozen) {
  double flops = 0;
  for (int64_t layer = 0; layer < config.num_all_layers(); ++layer) {
    if (!config.has_experts_at(layer)) continue;
    flops += (is_frozen ? 4.0 : 6.0) * static_cast<double>(config.hidden_size * *config.num_experts);
  }
  return flops;
}

int64_t count_if(const Model& model, const std::function<bool(const Parameter&)>& counts) {
  int64_t count = 0;
  model.for_each_parameter([&](Parameter& parameter) {
    if (counts(parameter)) count += parameter.placement().num_canonical_elements();
  });
  return count;
}

int64_t count_adapters(const Model& model) {
  return count_if(model, [](const Parameter& parameter) { return parameter.options().is_adapter; });
}

// By the unit whose name begins the parameter's; others are the head's.
void count_parts(const Model& model, const std::vector<Unit>& units, ModelNumbers& numbers) {
  const auto letter_of = [&](const std::string& name) {
    const Unit* owner = nullptr;
    for (const Unit& unit : units) {
      if (name.starts_with(unit.name + ".") && (owner == nullptr || unit.name.size() > owner->name.size()))
        owner = &unit;
    }
    return owner == nullptr ? UnitLetter::kHead : owner->letter;
  };
  model.for_each_parameter([&](Parameter& parameter) {
    if (parameter.options().is_adapter) return;
    const int64_t count = parameter.placement().num_canonical_elements();
    // A position table is not named after a unit.
    const bool is_table = parameter.options().role == ParameterRole::kEmbedding;
    const UnitLetter letter = is_table ? UnitLetter::kEmbedding : letter_of(parameter.name());
    if (letter == UnitLetter::kEmbedding) numbers.embedding_parameters += count;
    if (letter == UnitLetter::kLayer) numbers.layer_parameters += count;
  });
}

// Query-key pairs visible among s tokens: s²/2 for causal attention, as elsewhere. Beyond the window's first queries,
// each sees as many keys as the window has.
double pairs_seen(double s, double window, bool is_causal) {
  const double reach = window > 0 && window < s ? window : s;
  const double one_side = s * reach - reach * reach / 2;
  return is_causal ? one_side : 2 * one_side;
}

// For a layer, ignoring documents; a convolution, without pairs, has none that it does not see.
double pairs_seen(const ModelConfig& config, int64_t layer, int64_t length) {
  const auto place = static_cast<size_t>(std::min(layer, config.num_layers - 1));  // prediction modules are like the
                                                                                   // last layer
  const auto s = static_cast<double>(length), chunk = static_cast<double>(config.attention_chunk_size);
  const double window = config.layers_with_window()[place] == 1 ? static_cast<double>(config.attention_window()) : 0;
  if (config.has_convolution_at(static_cast<int64_t>(place))) return s * s;
  const bool has_chunks = chunk > 0 && chunk < s && config.layers_without_rotation()[place] == 0;
  if (!has_chunks) return pairs_seen(s, window, config.is_causal());
  const double num_chunks = std::floor(s / chunk);
  return num_chunks * pairs_seen(chunk, window, config.is_causal()) +
         pairs_seen(s - num_chunks * chunk, window, config.is_causal());
}

}  // namespace

double share_of_pairs_seen(const ModelConfig& config, int64_t layer, int64_t length) {
  const auto s = static_cast<double>(length);
  // Encoders, cross-attention and joint blocks see everything.
  const bool sees_all = config.num_layers == 0 || (config.has_encoder() && layer >= config.num_decoder_layers());
  return sees_all ? 1 : pairs_seen(config, layer, length) / (s * s);
}

ModelNumbers count_model(const BuiltModel& built, const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const ModelConfig& config = resolved.config.model;
  ModelNumbers numbers;
  // The whole model as on one rank, without storage, its vocabulary padded as here.
  const Groups alone = Groups::single();
  ModelConfig whole = built.config();
  if (whole.has_vocabulary()) {
    whole.make_vocab_size_divisible_by *= resolved.config.parallel.tensor_model_parallel_size;
  }
  const LayerContext context{
      .groups = &alone, .dtype = d.dtype, .device = at::kMeta, .lora = adapters_of(resolved.config)};
  const ModelFamily& family = family_for(whole);
  const auto all = family.build_whole(whole, context);
  if (context.lora != nullptr) freeze_all_but_adapters(all->parameters(), *context.lora);
  freeze_weights(resolved.config, all->parameters());
  const auto count_trained = [&](bool are_adapters) {
    return count_if(*all, [&](const Parameter& parameter) {
      return parameter.is_trainable() && parameter.options().is_adapter == are_adapters;
    });
  };
  numbers.adapter_parameters = count_trained(/*are_adapters=*/true);
  if (context.lora != nullptr) numbers.saved_parameters = count_trained(/*are_adapters=*/false);
  const int64_t num_modules = whole.num_prediction_modules();
  const int64_t num_all = all->num_parameters() - count_adapters(*all);
  numbers.parameters = num_all;
  // Three times a sequence's forward: backward is twice it, for frozen weights once.
  const CostShape sequence = resolved.kind().sample_shape(resolved);
  const auto step_of = [&](const Model& model) {
    return (3 * model.forward_flops(sequence) - model.frozen_flops(sequence)) *
           static_cast<double>(d.global_batch_size);
  };
  const double step = step_of(*all);
  numbers.flops_per_step = numbers.flops_per_step_primus = step;
  if (num_modules > 0) {
    std::vector<Unit> units = family.units(whole);
    std::erase_if(units, [](const Unit& unit) { return unit.letter == UnitLetter::kPrediction; });
    const auto without = family.build(whole, context, ModelPart::whole(std::move(units)));
    if (context.lora != nullptr) freeze_all_but_adapters(without->parameters(), *context.lora);
    freeze_weights(resolved.config, without->parameters());
    numbers.parameters = without->num_parameters() - count_adapters(*without);
    numbers.flops_per_step_primus = step_of(*without);
  }
  numbers.flops_per_step_primus -=
      router_flops(whole, context.lora != nullptr) * static_cast<double>(sequence.s * d.global_batch_size);
  numbers.prediction_parameters = num_all - numbers.parameters;
  count_parts(*all, family.units(whole), numbers);
  numbers.active_parameters = numbers.parameters - idle_parameters(whole);
  // Per pair, attention has a product of two vectors and one for the weighted values.
  const double a_pair =
      6.0 * static_cast<double>(config.num_attention_heads * (config.query_head_dim() + config.value_head_dim())) *
      static_cast<double>(d.global_batch_size);
  const double all_pairs = static_cast<double>(sequence.s) * static_cast<double>(sequence.s);
  double unseen = 0;
  // Encoders and cross-attention see everything.
  const int64_t num_causal = config.has_encoder() ? config.num_decoder_layers() : config.num_layers;
  for (int64_t layer = 0; layer < num_causal + num_modules; ++layer) {
    unseen += all_pairs - pairs_seen(config, layer, sequence.s);
  }
  numbers.flops_per_step_seen = step - a_pair * unseen;
  return numbers;
}

}  // namespace megalith

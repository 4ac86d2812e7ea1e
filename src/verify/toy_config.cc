#include "verify/toy_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kinds/kinds.h"
#include "kinds/text/toy_model.h"
#include "models/families.h"

namespace megalith {
namespace {

// Below gradients' norm, so clipping acts, and a wrong norm changes parameters.
constexpr double kClipGrad = 0.05;
// A gradient of rounding errors (1e-18) over this moves nothing.
constexpr double kLeastAdamEps = 1e-8, kLeastAdafactorEps = 1e-16;
constexpr int64_t kLeast8bitSize = 64;
constexpr int64_t kBucketElements = 700;  // several buckets, of uneven sizes

// Full recomputation that treats a stage's layers differently.
bool cuts_stages(const RecomputeOptions& recompute, const PipelinePlan& plan) {
  if (!recompute.is_full()) return false;
  const int64_t count = recompute.recompute_num_layers.value_or(0);
  if (!recompute.recompute_layer_ids.empty()) return true;
  if (recompute.recompute_method == "uniform") return count > 1;
  return count > 0 && std::any_of(plan.stages.begin(), plan.stages.end(),
                                  [&](const UnitRange& stage) { return plan.layers_of(stage).count > count; });
}

void shrink_recompute(const PipelinePlan& plan, const std::vector<int64_t>& sources, RecomputeOptions& recompute) {
  const bool is_cut = cuts_stages(recompute, plan);
  if (!recompute.recompute_layer_ids.empty()) {
    const std::vector<int64_t> asked = recompute.recompute_layer_ids;
    recompute.recompute_layer_ids.clear();
    for (int64_t layer = 0; layer < std::ssize(sources); ++layer) {
      const int64_t end = layer + 1 < std::ssize(sources) ? sources[static_cast<size_t>(layer) + 1] : INT64_MAX;
      const bool is_asked = std::any_of(asked.begin(), asked.end(), [&](int64_t one) {
        return sources[static_cast<size_t>(layer)] <= one && one < end;
      });
      if (is_asked) recompute.recompute_layer_ids.push_back(layer);
    }
  } else if (recompute.recompute_num_layers.value_or(0) > 0) {
    if (recompute.recompute_method == "uniform")
      recompute.recompute_num_layers = is_cut ? 2 : 1;
    else
      recompute.recompute_num_layers = is_cut ? 1 : std::ssize(sources);
  }
  recompute.cpu_offloading_num_layers = std::min<int64_t>(recompute.cpu_offloading_num_layers, std::ssize(sources));
}

void shrink_pipeline(const Resolved& user, const ToyWorld& world, const ToyLayers& layers, PipelineOptions& pipeline) {
  const PipelineOptions asked = pipeline;
  pipeline = {};
  if (world.parallel.pipeline_model_parallel_size == 1) return;
  pipeline.pp_algorithm = asked.pp_algorithm;
  pipeline.enable_zero_bubble = asked.enable_zero_bubble;
  pipeline.zero_bubble_v_schedule = asked.zero_bubble_v_schedule;
  pipeline.pipeline_model_parallel_layout = layers.pipeline_layout;
  if (const auto group = asked.microbatch_group_size_per_virtual_pipeline_stage) {
    const bool is_default = *group == user.config.parallel.pipeline_model_parallel_size;
    pipeline.microbatch_group_size_per_virtual_pipeline_stage =
        world.parallel.pipeline_model_parallel_size + (is_default ? 0 : 1);
  }
}

// Enough for schedules to fill and drain, and for two to follow one another everywhere.
int64_t num_microbatches(const PipelineOptions& pipeline, const ToyWorld& world, int num_chunks) {
  const int64_t p = world.parallel.pipeline_model_parallel_size;
  if (p == 1) return 2;
  if (num_chunks == 1) return p + 2;
  return 2 * pipeline.microbatch_group_size_per_virtual_pipeline_stage.value_or(p);  // virtual stages' groups
}

// Without rotation a key bias's gradient is only rounding, whose sign Lion follows.
bool follows_rounding(const Config& config) {
  return config.optimizer.optimizer == OptimizerKind::kLion && config.model.has_qkv_bias();
}

std::vector<std::string> parts_set_aside(const Resolved& user) {
  std::vector<std::string> parts;
  for (const auto& option : user.options->options()) {
    if (option->traits().in_toy != InToy::kSetAside || option->is_default()) continue;
    parts.push_back(option->is_switch() ? option->name() : fmt::format("{} {}", option->name(), option->text()));
  }
  if (follows_rounding(user.config)) parts.emplace_back("optimizer lion");
  return parts;
}

// As declared; made ones begin with the user's value.
void take_options(const Resolved& user, Resolved& toy) {
  for (const auto& option : toy.options->options()) {
    const InToy what = option->traits().in_toy;
    if (what == InToy::kKept || what == InToy::kMade) option->take(*user.options->find(option->name()));
    if (option->traits().read_by.contains(user.config.model.model_type)) option->take_toy();
  }
}

std::string last_word(const std::string& name) { return name.substr(name.find_last_of(".)]}*+?") + 1); }

// Ranks and layers that the toy has.
void shrink_adapters(LoraOptions& lora) {
  if (!lora.enabled) return;
  lora.dim = std::min<int64_t>(lora.dim, 3);
  // Adapters that outweigh the model would amplify its rounding in each layer.
  const auto dim = static_cast<double>(lora.dim);
  lora.alpha = std::min(lora.alpha, 0.5 * (lora.use_rslora ? std::sqrt(dim) : dim));
  if (!lora.start().decomposes()) {
    lora.init_lora_weights = "default";
    lora.b_init = AdapterInit::kNormal;  // zero gives A no gradient in the first step
  }
  if (lora.has_expressions()) lora.target_modules = {"all-linear"};
  // Layers of the toy have the same last words, and smaller ranks.
  for (std::string& entry : lora.rank_pattern) entry = last_word(entry.substr(0, entry.rfind('='))) + "=2";
  for (std::string& entry : lora.alpha_pattern) {
    entry = last_word(entry.substr(0, entry.rfind('='))) + entry.substr(entry.rfind('='));
  }
}

// Common to both runs.
void shrink_task(const Resolved& user, const ToyWorld& world, const ToyLayers& layers, ToyPrecision precision,
                 int num_steps, Config& config) {
  const Config& asked = user.config;
  config.parallel = world.parallel;
  config.sequence_parallel = user.derived.is_sequence_parallel && world.parallel.tensor_model_parallel_size > 1;
  user.kind().shrink_model(world.parallel, asked.model, layers.sources, config.model);
  shrink_adapters(config.lora);
  config.task = asked.task;
  // The user's may exceed the toy's vocabulary.
  config.task.mask_token_id.reset();
  const ModelTypes masking = user.options->of(asked.task.mask_token_id).traits().read_by;
  if (config.model.vocab_size && masking.contains(asked.model.model_type)) {
    config.task.mask_token_id = *config.model.vocab_size - 1;
  }
  config.task.titles_data_path.reset();  // the check's rows are made up
  if (precision == ToyPrecision::kExact) config.model.moe_router_dtype = RouterPrecision::kModel;
  config.train.train_iters = num_steps;
  config.train.micro_batch_size = std::min<int64_t>(asked.train.micro_batch_size, 2);
  user.kind().shrink_sample(asked, config);
  config.optimizer.clip_grad = kClipGrad;
  config.optimizer.adam_eps = std::max(asked.optimizer.adam_eps, kLeastAdamEps);
  if (config.optimizer.optimizer == OptimizerKind::kAdafactor) {
    double& eps = config.optimizer.adafactor.adafactor_eps1;
    eps = std::max(eps, kLeastAdafactorEps);
  }
  // Some of a toy's tensors have eight bits, the others do not.
  if (config.optimizer.optimizer == OptimizerKind::kAdam8bit) config.optimizer.adam8bit.min_8bit_size = kLeast8bitSize;
  if (follows_rounding(config)) {
    config.optimizer.optimizer = OptimizerKind::kSgd;
    config.optimizer.lion = {};
  }
}

void spread(const Resolved& user, const ToyWorld& world, const ToyLayers& layers, Config& config) {
  shrink_pipeline(user, world, layers, config.pipeline);
  shrink_recompute(user.derived.pipeline, layers.sources, config.recompute);
  if (!config.data_parallel.ddp_num_buckets) config.data_parallel.ddp_bucket_size = kBucketElements;
  std::vector<std::string>& kinds = config.parallel.cp_comm_type;
  if (kinds.size() > 1) {
    // As many as layers allow.
    std::vector<std::string> distinct;
    for (const std::string& kind : kinds) {
      if (std::find(distinct.begin(), distinct.end(), kind) == distinct.end()) distinct.push_back(kind);
    }
    kinds.clear();
    for (size_t layer = 0; layer < layers.sources.size(); ++layer) kinds.push_back(distinct[layer % distinct.size()]);
  }
}

// One rank reads a step in one microbatch, unless the objective is defined over each (experts' balance); a biencoder's
// and a step's balance span a microbatch of all ranks.
void gather_on_one_rank(const Config& layout, const Kind& kind, int64_t data_parallel_size, Config& config) {
  config.parallel = {};
  config.pipeline = {};
  config.recompute = {};
  config.data_parallel = {};
  config.sequence_parallel = false;
  config.model.moe_shared_expert_overlap = false;
  if (kind.has_objective_of_sets() || config.model.balances_over_step()) {
    config.train.micro_batch_size = layout.train.micro_batch_size * data_parallel_size;
  } else if (!config.model.has_experts()) {
    config.train.micro_batch_size = *layout.train.global_batch_size;
  }
  config.runtime.kernels = Kernels::kReference;
}

void derive(Resolved& resolved, int64_t world_size, ToyPrecision precision) {
  std::vector<UserError> errors;
  derive_and_check(resolved, world_size, errors);
  MEGALITH_CHECK(errors.empty(), "the toy of this configuration does not hold: {}", errors.front().what());
  if (precision == ToyPrecision::kExact) resolved.derived.dtype = at::kDouble;
}

}  // namespace

CheckedConfig resolve_for_check(const ConfigInputs& inputs, int64_t launched_ranks) {
  // The sizes determine the world. The second reading reports their errors.
  Resolved first(all_kinds());
  try_resolve(*first.options, inputs);
  ConfigInputs second = inputs;
  second.arguments.emplace_back("--dry_run=true");
  CheckedConfig checked;
  if (launched_ranks > 1) {
    checked.world_size = launched_ranks;
    second.arguments.emplace_back("--dry_run_world_size=1");
  } else if (first.options->of(first.config.train.dry_run_world_size).is_set()) {
    checked.world_size = first.config.train.dry_run_world_size;
  }
  const int64_t smallest = smallest_world(first.config.parallel);
  checked.resolved = resolve_config(all_kinds(), second, checked.world_size.value_or(smallest));
  return checked;
}

ToyLayers make_toy_layers(const Resolved& user, const ToyWorld& world) {
  std::vector<LayerRange> stages;
  for (const UnitRange& stage : user.derived.pipeline.stages) stages.push_back(user.derived.pipeline.layers_of(stage));
  const int64_t base = cuts_stages(user.config.recompute, user.derived.pipeline) ? 2 : 1;
  ToyLayers toy;
  const ModelConfig& model = user.config.model;
  const int64_t num_in_front = model.num_first_layers();
  const int64_t num_all = model.num_all_layers();
  // Keeps both sides of a stage across encoder and decoder. Returns the number added.
  const auto add_layers = [&](const LayerRange& stage, int64_t count) {
    const int64_t end = stage.first + stage.count, border = std::clamp(num_in_front, stage.first, end);
    const std::vector<LayerRange> parts = {{.first = stage.first, .count = border - stage.first},
                                           {.first = border, .count = end - border}};
    const bool is_crossed = parts[0].count > 0 && parts[1].count > 0;
    int64_t num_added = 0;
    for (const LayerRange& part : parts) {
      const int64_t wanted = is_crossed ? div_up(count, 2) : count;
      const int64_t of_part = std::min(wanted, part.count);
      for (int64_t i = 0; i < of_part; ++i) toy.sources.push_back(part.first + i * part.count / of_part);
      num_added += of_part;
    }
    return num_added;
  };
  const int64_t num_ranks = world.parallel.pipeline_model_parallel_size;
  if (num_ranks == 1) {
    const LayerRange whole{.first = 0, .count = num_all};
    const int64_t kinds = world.parallel.context_parallel_size > 1 && world.parallel.cp_comm_type.size() > 1 ? 4 : 2;
    const int64_t stacks = model.num_stacks();
    add_layers(whole, std::min(whole.count, stacks * std::max(2 * base, kinds)));
    return toy;
  }
  int64_t shortest = num_all;
  for (const LayerRange& stage : stages) {
    if (stage.count > 0) shortest = std::min(shortest, stage.count);
  }
  const int64_t num_stages = num_ranks * user.derived.pipeline.num_chunks, last = std::ssize(stages) - 1;
  for (int64_t i = 0; i < num_stages; ++i) {
    // First and last stage represent the user's.
    const LayerRange& stage = stages[static_cast<size_t>((2 * i * last + num_stages - 1) / (2 * (num_stages - 1)))];
    const int64_t wanted = stage.count == 0 ? 0 : stage.count == shortest ? base : base + 1;
    const int64_t count = add_layers(stage, std::min(wanted, stage.count));
    toy.pipeline_layout += i == 0 ? "E" : "|";
    toy.pipeline_layout.append(static_cast<size_t>(count), 't');
  }
  toy.pipeline_layout.append(static_cast<size_t>(toy_prediction_modules(user.config.model)), 'm');
  toy.pipeline_layout += "L";
  return toy;
}

ToyConfig make_toy_config(const Resolved& user, const ToyWorld& world, ToyPrecision precision, int num_steps) {
  const ToyLayers layers = make_toy_layers(user, world);
  ToyConfig toy;
  toy.layout = std::make_unique<Resolved>(user.kinds);
  toy.one_rank = std::make_unique<Resolved>(user.kinds);
  take_options(user, *toy.layout);
  take_options(user, *toy.one_rank);
  Config& layout = toy.layout->config;
  shrink_task(user, world, layers, precision, num_steps, layout);
  spread(user, world, layers, layout);
  layout.train.global_batch_size = layout.train.micro_batch_size * world.data_parallel_size() *
                                   num_microbatches(layout.pipeline, world, user.derived.pipeline.num_chunks);
  if (precision == ToyPrecision::kExact) layout.runtime.kernels = Kernels::kReference;
  Config& one = toy.one_rank->config;
  shrink_task(user, world, layers, precision, num_steps, one);
  one.train = layout.train;
  gather_on_one_rank(layout, user.kind(), world.data_parallel_size(), one);
  derive(*toy.layout, world.world_size, precision);
  derive(*toy.one_rank, 1, precision);
  toy.set_aside = parts_set_aside(user);
  return toy;
}

std::string ToyConfig::text() const {
  const ModelConfig& m = layout->config.model;
  const Derived& d = layout->derived;
  std::string text = fmt::format("{}, {} layers of width {}, {} heads", family_for(m).name, m.num_all_layers(),
                                 m.hidden_size, m.num_attention_heads);
  if (m.num_kv_heads() != m.num_attention_heads) text += fmt::format(" on {} keys", m.num_kv_heads());
  if (m.has_experts()) text += fmt::format(", {} experts of which a token meets {}", *m.num_experts, m.moe_router_topk);
  if (m.num_prediction_modules() > 0) text += fmt::format(", {} prediction module(s)", m.num_prediction_modules());
  if (m.has_vocabulary()) text += fmt::format(", vocabulary {}", d.vocab_size);
  return text + fmt::format("; {} microbatches of {} × {} tokens on each data-parallel rank", d.num_microbatches,
                            d.micro_batch_size, d.seq_length);
}

}  // namespace megalith

// The start-up report; see report.h.
#include "train/report.h"

#include "comm/groups.h"
#include "core/strings.h"
#include "models/families.h"
#include "ops/gpu/blas.h"
#include "planner/pipeline_simulator.h"

namespace megalith {
namespace {

std::string with_separators(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return digits;
}

// The schedule, what it leaves idle when every layer takes equally long, and the layers of each stage.
std::string pipeline_text(const PipelinePlan& plan, int64_t num_microbatches) {
  PipelineCosts costs;
  std::string layers;
  for (const UnitRange& stage : plan.stages) {
    const int64_t num_layers = plan.layers_of(stage).count;
    const auto time = static_cast<double>(num_layers);
    costs.stages.push_back({.forward = time, .input_backward = time, .weight_backward = time});
    layers += fmt::format("{}{}", layers.empty() ? "" : " ", num_layers);
  }
  const PipelineSchedule schedule = plan.schedule(narrow<int>(num_microbatches));
  const PipelineSimulation simulation = simulate_pipeline(schedule, costs);
  return fmt::format("pipeline: {} on {} ranks, stages of {} layers, {:.1f} % idle by the simulator\n", schedule.name,
                     plan.num_ranks, layers, 100 * simulation.bubble_fraction());
}

std::string expert_layout_text(const Config& config) {
  if (!config.model.has_experts()) return "";
  const ParallelOptions& parallel = config.parallel;
  return fmt::format(", expert parallel {}, expert tensor parallel {}", parallel.expert_model_parallel_size,
                     parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size));
}

// What a token does not meet: the experts that it is not sent to, and the biases that only choose.
int64_t idle_parameters(const ModelConfig& config) {
  int64_t idle = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.has_experts_at(layer)) continue;
    const int64_t matrices = config.is_gated() ? 3 : 2;
    idle += (*config.num_experts - config.moe_router_topk) * matrices * config.hidden_size * config.expert_ffn_size();
    if (config.moe_router_enable_expert_bias) idle += *config.num_experts;
  }
  return idle;
}

std::string experts_text(const ModelConfig& config) {
  int64_t num_layers = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) num_layers += config.has_experts_at(layer) ? 1 : 0;
  std::string text = fmt::format("experts: {} in {} of {} layers, {} a token, ffn {}", *config.num_experts, num_layers,
                                 config.num_layers, config.moe_router_topk, config.expert_ffn_size());
  if (config.shared_expert_size() > 0) text += fmt::format(", shared {}", config.shared_expert_size());
  return text + "\n";
}

}  // namespace

ModelNumbers count_model(const BuiltModel& built, const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const ModelConfig& config = resolved.config.model;
  ModelNumbers numbers;
  // The whole, as one rank would hold it: without storage, the vocabulary padded as here.
  const Groups alone = Groups::single();
  ModelConfig whole = built.config();
  whole.make_vocab_size_divisible_by *= resolved.config.parallel.tensor_model_parallel_size;
  const LayerContext context{.groups = &alone, .dtype = d.dtype, .device = at::kMeta};
  const ModelFamily& family = family_for(whole);
  const auto all = family.build_whole(whole, context);
  const int64_t num_modules = whole.num_prediction_modules();
  numbers.parameters = all->num_parameters();
  if (num_modules > 0) {
    std::vector<Unit> units = family.units(whole);
    std::erase_if(units, [](const Unit& unit) { return unit.letter == UnitLetter::kPrediction; });
    numbers.parameters = family.build(whole, context, ModelPart::whole(std::move(units)))->num_parameters();
  }
  numbers.prediction_parameters = all->num_parameters() - numbers.parameters;
  numbers.active_parameters = numbers.parameters - idle_parameters(whole);
  // Forward of one sequence, three times over: backward is twice the forward.
  const double step = 3 * all->forward_flops({1, d.seq_length}) * static_cast<double>(d.global_batch_size);
  numbers.flops_per_step = step;
  const double core = 6.0 *
                      static_cast<double>((config.num_layers + num_modules) * config.num_attention_heads *
                                          (config.query_head_dim() + config.value_head_dim())) *
                      static_cast<double>(d.seq_length) * static_cast<double>(d.seq_length) *
                      static_cast<double>(d.global_batch_size);
  numbers.flops_per_step_causal = config.is_causal ? step - core / 2 : step;
  return numbers;
}

std::string startup_report(const Resolved& resolved, const ModelNumbers& numbers, const MemoryByOwner* memory,
                           const std::string& device_text) {
  const Derived& d = resolved.derived;
  const Config& c = resolved.config;
  ModelConfig model = c.model;
  model.vocab_size = d.vocab_size;  // a tokenizer may have given it
  std::string text = "options that differ from their defaults:\n";
  for (const auto& option : resolved.options->options()) {
    if (option->is_default()) continue;
    text += fmt::format("  {:<44} {}  ({})\n", option->name(), option->text(), option->source().where);
  }
  text += fmt::format("device: {}\n", device_text);
  if (const std::string tuning = ops::gpu::gemm_tuning_text(); !tuning.empty()) {
    text += fmt::format("matrix products: algorithms of {}\n", tuning);
  }
  text += fmt::format("layout: {} rank{}: data parallel {}, tensor parallel {}, pipeline {}, context parallel {}{}\n",
                      d.world_size, d.world_size == 1 ? "" : "s", d.data_parallel_size,
                      c.parallel.tensor_model_parallel_size, c.parallel.pipeline_model_parallel_size,
                      c.parallel.context_parallel_size, expert_layout_text(c));
  text += fmt::format("model: {} layers, hidden {}, ffn {}, {} heads of {} ({} KV), vocabulary {} (padded {})\n",
                      c.model.num_layers, c.model.hidden_size, c.model.ffn_size(), c.model.num_attention_heads,
                      c.model.query_head_dim(), c.model.num_kv_heads(), d.vocab_size,
                      model.padded_vocab_size(c.parallel.tensor_model_parallel_size));
  if (d.pipeline.stages.size() > 1) text += pipeline_text(d.pipeline, d.num_microbatches);
  if (model.has_experts()) text += experts_text(model);
  text += fmt::format("number of parameters: {}", with_separators(numbers.parameters));
  if (model.has_experts())
    text += fmt::format(", of which a token meets {}", with_separators(numbers.active_parameters));
  if (numbers.prediction_parameters > 0) {
    text += fmt::format("; prediction modules have {} more", with_separators(numbers.prediction_parameters));
  }
  text += "\n";
  text += fmt::format("batch: {} samples of {} tokens = {} microbatch{} of {} on {} data-parallel rank{}\n",
                      d.global_batch_size, d.seq_length, d.num_microbatches, d.num_microbatches == 1 ? "" : "es",
                      d.micro_batch_size, d.data_parallel_size, d.data_parallel_size == 1 ? "" : "s");
  text +=
      fmt::format("run: {} iterations, {} tokens, {} TFLOP a step (attention not halved for causality; {} halved)",
                  d.train_iters, format_count(static_cast<double>(d.batches.consumed_by(d.train_iters) * d.seq_length)),
                  fmt::format("{:.3g}", numbers.flops_per_step / 1e12),
                  fmt::format("{:.3g}", numbers.flops_per_step_causal / 1e12));
  if (const std::string eight_bits = fp8_text(c.fp8, c.model.num_layers); !eight_bits.empty()) {
    text += fmt::format("\nproducts of the layers: {}", eight_bits);
  }
  if (memory != nullptr) {
    text += fmt::format("\nmemory on this rank: parameters {}, gradients {}, optimizer {}, activations about {}",
                        format_bytes(memory->parameters), format_bytes(memory->gradients),
                        format_bytes(memory->optimizer), format_bytes(memory->activations));
    if (memory->weight_copies > 0) {
      text += fmt::format(", eight-bit weights {}", format_bytes(memory->weight_copies));
    }
  }
  return text;
}

}  // namespace megalith

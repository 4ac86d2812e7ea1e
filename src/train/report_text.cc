// The words of the start-up report; see report.h.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/number_of.h"
#include "core/strings.h"
#include "models/model_head.h"
#include "ops/gpu/blas.h"
#include "planner/pipeline_simulator.h"
#include "train/rank_picture.h"
#include "train/report.h"
#include "train/tracking.h"

namespace megalith {
namespace {

constexpr size_t kTopicColumns = 11;

// Rows "topic  text"; long texts continue on the next line, indented.
class ReportRows {
 public:
  void add(std::string_view topic, std::string_view text) {
    for (const std::string& line : wrap(text, kReportColumns - kTopicColumns)) {
      add_as_it_is(topic, line);
      topic = "";
    }
  }
  void add_as_it_is(std::string_view topic, std::string_view line) {
    text_ += fmt::format("{}{:<{}}{}", text_.empty() ? "" : "\n", topic, kTopicColumns, line);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string with_separators(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return digits;
}

std::string counted(double value) { return format_count(value); }
std::string counted(int64_t value) { return format_count(static_cast<double>(value)); }

// The schedule, its bubble for equally slow layers, and each stage's layers.
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
  return fmt::format("{} on {} ranks, stages of {} layers, {:.1f} % idle by the simulator", schedule.name,
                     plan.num_ranks, layers, 100 * simulation.bubble_fraction());
}

std::string experts_text(const ModelConfig& config, const ModelNumbers& numbers) {
  int64_t num_layers = 0;
  for (int64_t layer = 0; layer < config.num_all_layers(); ++layer) num_layers += config.has_experts_at(layer) ? 1 : 0;
  std::string text = fmt::format("{} in {} of {} layers, {} a token, ffn {}", *config.num_experts, num_layers,
                                 config.num_all_layers(), config.moe_router_topk, config.expert_ffn_size());
  if (config.shared_expert_size() > 0) text += fmt::format(", shared {}", config.shared_expert_size());
  return text + fmt::format("; a token meets {} parameters", with_separators(numbers.active_parameters));
}

std::string parameters_text(const ModelConfig& model, const ModelNumbers& numbers) {
  const int64_t head = numbers.parameters - numbers.embedding_parameters - numbers.layer_parameters;
  std::string text = fmt::format("{}, {} parameters: embedding {}, {} {}, head {}", family_for(model).name,
                                 with_separators(numbers.parameters), counted(numbers.embedding_parameters),
                                 number_of(model.num_all_layers(), "layer", "layers"),
                                 counted(numbers.layer_parameters), counted(head));
  const bool has_own_head = find_head(model.model_type) == nullptr && model.has_vocabulary();
  if (!model.untie_embeddings_and_output_weights && has_own_head) text += " (tied)";
  if (numbers.prediction_parameters > 0) {
    text += fmt::format("; prediction modules have {} more", with_separators(numbers.prediction_parameters));
  }
  if (numbers.adapter_parameters > 0) {
    const auto all = static_cast<double>(numbers.parameters + numbers.prediction_parameters);
    const std::string also = numbers.saved_parameters == 0 ? "the only ones that are trained"
                                                           : fmt::format("trained with {} of the model's",
                                                                         with_separators(numbers.saved_parameters));
    text += fmt::format("; adapters beside them have {}, {} ({:.2g} %)", with_separators(numbers.adapter_parameters),
                        also, 100 * static_cast<double>(numbers.adapter_parameters + numbers.saved_parameters) / all);
  }
  return text;
}

// "a", "a and b", "a, b and c"
std::string enumeration(const std::vector<std::string>& words) {
  const std::vector<std::string> first(words.begin(), words.end() - 1);
  return first.empty() ? words.back() : fmt::format("{} and {}", join(first, ", "), words.back());
}

// The end of a long path, with its name.
std::string short_path(const std::string& path) {
  constexpr size_t kMost = 36;
  if (path.size() <= kMost) return path;
  size_t from = path.size() - (kMost - 1);
  while (from < path.size() && (static_cast<unsigned char>(path[from]) & 0xc0u) == 0x80u) ++from;  // whole letters
  return "…" + path.substr(from);
}

std::string precision_text(const Resolved& resolved) {
  const Config& c = resolved.config;
  const at::ScalarType dtype = resolved.derived.dtype;
  std::string text;
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    text = dtype_text(dtype) + " for weights, products, gradients and the optimizer";
  } else {
    const bool has_moments = c.optimizer.has_adamw();
    const bool has_narrow_moments = has_moments && c.optimizer.exp_avg_dtype == MomentDtype::kBf16;
    const MasterWeights masters = c.optimizer.master_weights;
    const bool has_narrow_grads = c.data_parallel.main_grads_dtype == GradDtype::kBf16;
    std::vector<std::string> wide;
    if (!has_narrow_grads) wide.emplace_back("gradients");
    if (has_moments && !has_narrow_moments) wide.emplace_back("moments");
    if (masters == MasterWeights::kFp32) wide.emplace_back("master weights");
    text = fmt::format("{} weights and products", dtype_text(dtype));
    if (!wide.empty()) text += fmt::format("; {} in fp32", enumeration(wide));
    if (has_narrow_grads) text += ", gradients in bf16";
    if (has_narrow_moments) text += ", moments in bf16";
    if (masters == MasterWeights::kRemainder) text += ", master weights as 16 more bits";
    if (masters == MasterWeights::kNone) text += ", no master weights";
    if (c.data_parallel.grad_reduce_in_bf16 && !has_narrow_grads) text += "; gradients are reduced in bf16";
  }
  if (dtype == at::kHalf) {
    text += c.train.loss_scaling.loss_scale ? fmt::format("; loss scale {:g}", *c.train.loss_scaling.loss_scale)
                                            : std::string("; dynamic loss scale");
  }
  if (const std::string eight_bits = fp8_text(c.fp8, c.model.num_layers); !eight_bits.empty()) {
    text += "; products of the layers: " + eight_bits;
  }
  return text;
}

std::string optimizer_text(const Config& c) {
  const OptimizerOptions& o = c.optimizer;
  std::string text;
  switch (o.optimizer) {
    case OptimizerKind::kAdam:
      text = fmt::format("AdamW, beta1 {:g}, beta2 {:g}", o.adam_beta1, o.adam_beta2);
      break;
    case OptimizerKind::kSgd:
      text = fmt::format("SGD, momentum {:g}", o.sgd_momentum);
      break;
    case OptimizerKind::kMuon:
      text = fmt::format("Muon for matrices, momentum {:g}; AdamW for the rest", o.muon.muon_momentum);
      break;
    case OptimizerKind::kLion:
      text = fmt::format("Lion, beta1 {:g}, beta2 {:g}", o.lion.lion_beta1, o.lion.lion_beta2);
      break;
    case OptimizerKind::kAdafactor:
      text = fmt::format("Adafactor, decay rate {:g}, update clipped at {:g}", o.adafactor.adafactor_decay_rate,
                         o.adafactor.adafactor_clip_threshold);
      break;
    case OptimizerKind::kAdam8bit:
      text = fmt::format("AdamW with moments in eight bits, beta1 {:g}, beta2 {:g}", o.adam_beta1, o.adam_beta2);
      break;
  }
  text += fmt::format(", weight decay {:g}", c.learning_rate.weight_decay);
  return text + (o.clip_grad > 0 ? fmt::format(", gradients clipped at norm {:g}", o.clip_grad) : ", no clipping");
}

std::string curve_text(const Resolved& resolved) {
  const LearningRateOptions& options = resolved.config.learning_rate;
  const Derived& d = resolved.derived;
  static constexpr const char* kStyles[] = {"constant", "linear", "cosine", "inverse square root", "WSD"};
  const LearningRateCurve curve(options, std::max<int64_t>(d.schedule_samples, 1), d.global_batch_size);
  const auto steps = [&](int64_t samples) {
    return counted(std::ceil(static_cast<double>(samples) / static_cast<double>(d.global_batch_size)));
  };
  std::string text =
      fmt::format("learning rate {:g}, {}", options.lr, kStyles[static_cast<size_t>(options.lr_decay_style)]);
  if (options.lr_decay_style != DecayStyle::kConstant) {
    text += fmt::format(" to {:g} in {} steps", options.min_lr, steps(curve.decay_samples()));
  }
  if (curve.warmup_samples() > 0) text += fmt::format(", {} of them warm-up", steps(curve.warmup_samples()));
  return text;
}

// "3.95 M tokens in 1.13 k documents"; synthetic data's name.
std::string size_text(const BatchSource& source) {
  const std::optional<DataSize> size = source.data_size();
  if (!size) return source.name();
  return fmt::format("{} tokens in {}", counted(size->tokens),
                     size->documents == 1 ? std::string("1 document") : counted(size->documents) + " documents");
}

std::string epochs_text(const Resolved& resolved, const BatchSource& source) {
  const Derived& d = resolved.derived;
  const std::optional<DataSize> size = source.data_size();
  if (!size || size->samples.value_or(0) == 0) return "";
  const auto samples = static_cast<double>(d.batches.consumed_by(d.train_iters));
  return fmt::format(", {:.3g} epochs in this run", samples / *size->samples);
}

void add_data(const Resolved& resolved, const DataSets& data, ReportRows& rows) {
  const TrainOptions& train = resolved.config.train;
  std::string_view topic = "data";
  std::string place;  // last one reported
  const auto add = [&](const std::string& text, const BatchSource& source) {
    const bool is_new = source.data_size() && std::exchange(place, source.name()) != source.name();
    rows.add(std::exchange(topic, ""), text + (is_new ? ": " + short_path(place) : ""));
  };
  if (data.train) add("train on " + size_text(*data.train) + epochs_text(resolved, *data.train), *data.train);
  for (const NamedSource& one : data.evaluated(Split::kValid)) {
    if (train.eval_iters < 1) break;
    add(fmt::format("evaluate on {}{}, {} every {} steps", data.valid ? "" : one.name + ": ", size_text(*one.source),
                    number_of(train.eval_iters, "batch", "batches"), train.eval_interval),
        *one.source);
  }
  if (train.eval_iters > 0 && data.test) add("test on " + size_text(*data.test), *data.test);
  const DataOptions& options = resolved.config.data;
  if (!options.data_path.empty()) {
    rows.add(std::exchange(topic, ""), "split " + options.split.value_or("969, 30, 1 (the default)"));
  }
}

std::string layout_text(const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const Config& c = resolved.config;
  if (d.world_size == 1) return "1 rank";
  std::string text = fmt::format("{} ranks: data parallel {}, tensor parallel {}, pipeline {}, context parallel {}",
                                 d.world_size, d.data_parallel_size, c.parallel.tensor_model_parallel_size,
                                 c.parallel.pipeline_model_parallel_size, c.parallel.context_parallel_size);
  if (c.model.has_experts()) {
    const int64_t etp = c.parallel.expert_tensor_parallel_size.value_or(c.parallel.tensor_model_parallel_size);
    text += fmt::format(", expert parallel {}, expert tensor parallel {}", c.parallel.expert_model_parallel_size, etp);
  }
  if (d.is_sequence_parallel) text += ", sequence parallel";
  if (d.data_parallel.use_torch_fsdp2) text += ", FSDP";
  if (d.data_parallel.use_distributed_optimizer) text += ", distributed optimizer";
  return text;
}

std::string memory_text(const MemoryByOwner& memory) {
  std::string text = fmt::format("this rank: parameters {}, gradients {}, optimizer {}, activations about {}",
                                 format_bytes(memory.parameters), format_bytes(memory.gradients),
                                 format_bytes(memory.optimizer), format_bytes(memory.activations));
  if (memory.weight_copies > 0) text += fmt::format(", eight-bit weights {}", format_bytes(memory.weight_copies));
  if (memory.on_host > 0) text += fmt::format("; in host memory {}", format_bytes(memory.on_host));
  return text;
}

// "0.27 TFLOP", "40.9 MFLOP"
std::string flop_text(double flops) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  size_t unit = 0;
  for (; flops >= 999.5 && unit + 1 < std::size(kUnits); flops /= 1000) ++unit;
  return fmt::format("{:.3g} {}FLOP", flops, kUnits[unit]);
}

std::string compute_text(const Resolved& resolved, const ModelNumbers& numbers, const ReportFacts& facts) {
  const Derived& d = resolved.derived;
  const ModelConfig& model = resolved.config.model;
  const bool sees_less = model.has_windows() || model.attention_chunk_size > 0;
  std::string text =
      fmt::format("{} a step ({} with attention {})", flop_text(numbers.flops_per_step),
                  flop_text(numbers.flops_per_step_seen), sees_less ? "as far as it sees" : "halved for causality");
  if (facts.flops_per_s <= 0) return text;
  const double step_s = numbers.flops_per_step / (facts.flops_per_s * static_cast<double>(d.world_size));
  const double full_steps = static_cast<double>(d.batches.consumed_by(d.train_iters)) /
                            static_cast<double>(std::max<int64_t>(d.global_batch_size, 1));
  text += fmt::format("; at {}/s, {}, a step takes at least {} and the run {}", flop_text(facts.flops_per_s),
                      facts.is_measured ? "as this processor multiplies now" : "the device's peak",
                      format_duration(step_s), format_duration(step_s * full_steps));
  // Large models reach a third to a half of the peak on well-connected GPUs.
  if (!facts.is_measured) text += fmt::format(" ({} at 40 % of it)", format_duration(step_s * full_steps / 0.4));
  return text;
}

std::string output_text(const Resolved& resolved) {
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  const LogOptions& log = resolved.config.log;
  // Paths in the run's folder are shown relative to it.
  const auto place = [&](const std::string& path) {
    if (log.output_dir) {
      const std::filesystem::path inside = std::filesystem::path(path).lexically_relative(*log.output_dir);
      if (!inside.empty() && *inside.begin() != "..") return inside.string();
    }
    return short_path(path);
  };
  std::vector<std::string> parts;
  if (log.output_dir) parts.push_back(fmt::format("the run in {}", short_path(*log.output_dir)));
  if (checkpoint.save) {
    parts.push_back(fmt::format("checkpoints in {}{}", place(*checkpoint.save),
                                checkpoint.save_interval ? fmt::format(" every {} steps", *checkpoint.save_interval)
                                                         : std::string(" at the end")));
  } else if (!checkpoint.save_hf && !checkpoint.save_adapter) {
    parts.push_back("no weights are saved (--save FOLDER saves them)");
  }
  if (checkpoint.save_hf) parts.push_back("Hugging Face export in " + place(*checkpoint.save_hf));
  if (checkpoint.save_adapter) parts.push_back("adapters in " + place(*checkpoint.save_adapter));
  if (log.metrics_file) parts.push_back("metrics in " + place(*log.metrics_file));
  if (log.loss_plot_file) parts.push_back("plot in " + place(*log.loss_plot_file));
  if (log.page_file) parts.push_back("page in " + place(*log.page_file));
  if (log.writes_tensorboard()) parts.push_back("TensorBoard events in " + place(*log.tensorboard_dir));
  const Config& config = resolved.config;
  if (config.tracking.writes_wandb()) parts.push_back("W&B run in " + place(wandb_folder(config).string()));
  if (config.tracking.writes_mlflow()) parts.push_back("MLflow run in " + place(mlflow_folder(config).string()));
  return join(parts, ", ");
}

}  // namespace

std::string dtype_text(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kDouble:
      return "fp64";
    default:
      return "fp32";
  }
}

std::string differing_options(const OptionSet& options) {
  std::string text = "options that differ from their defaults:";
  for (const auto& option : options.options()) {
    if (option->is_default()) continue;
    text += fmt::format("\n  {:<44} {}  ({})", option->name(), option->text(), option->source().where);
  }
  return text;
}

std::string startup_report(const Resolved& resolved, const ModelNumbers& numbers, const MemoryByOwner* memory,
                           const std::string& device_text, const ReportFacts& facts) {
  const Derived& d = resolved.derived;
  const Config& c = resolved.config;
  ModelConfig model = c.model;
  model.vocab_size = d.vocab_size;  // a tokenizer may have set it
  ReportRows rows;
  rows.add("model", parameters_text(model, numbers));
  rows.add("", resolved.kind().shape_text(resolved, model));
  if (model.has_experts()) rows.add("experts", experts_text(model, numbers));
  rows.add("precision", precision_text(resolved));
  rows.add("optimizer", optimizer_text(c));
  if (d.train_iters > 0) rows.add("", curve_text(resolved));
  if (facts.data != nullptr) add_data(resolved, *facts.data, rows);
  rows.add(
      "batch",
      fmt::format("{} of {} = {} of {} on {}; {}, {} tokens", number_of(d.global_batch_size, "sample", "samples"),
                  resolved.kind().sample_text(resolved), number_of(d.num_microbatches, "microbatch", "microbatches"),
                  d.micro_batch_size, number_of(d.data_parallel_size, "data-parallel rank", "data-parallel ranks"),
                  number_of(d.train_iters, "step", "steps"),
                  counted(static_cast<double>(d.batches.consumed_by(d.train_iters) *
                                              resolved.kind().tokens_per_sample(resolved)))));
  for (const auto& [topic, text] : resolved.kind().report_rows(resolved)) rows.add(topic, text);
  rows.add("layout", layout_text(resolved));
  const Mesh mesh = Mesh::from_options(c.parallel, d.world_size);
  for (const std::string& line : rank_picture(mesh, kReportColumns - kTopicColumns)) rows.add_as_it_is("", line);
  if (d.pipeline.stages.size() > 1) rows.add("pipeline", pipeline_text(d.pipeline, d.num_microbatches));
  const size_t end_of_device = c.log.verbose ? device_text.size() : device_text.find('\n');
  rows.add_as_it_is("device", device_text.substr(0, end_of_device));
  if (const std::string tuning = ops::gpu::gemm_tuning_text(); !tuning.empty()) {
    rows.add("products", "algorithms of " + tuning);
  }
  if (!facts.attention.empty()) rows.add("attention", facts.attention);
  if (!facts.graphs.empty()) rows.add("graphs", facts.graphs);
  if (memory != nullptr) rows.add("memory", memory_text(*memory));
  rows.add("compute", compute_text(resolved, numbers, facts));
  rows.add("output", output_text(resolved));
  return rows.take();
}

}  // namespace megalith

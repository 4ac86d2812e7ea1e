// The training loop; see trainer.h.
#include "train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/hf.h"
#include "checkpoint/resume.h"
#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/memory.h"

namespace megalith {
namespace {

// Names of this file's counters among the numbers of a checkpoint.
constexpr const char* kScheduleSamples = "schedule_samples";
constexpr const char* kSkippedSamples = "skipped_samples";

// Differences from the checkpoint that change what is computed. Where files go, and what was taken from the checkpoint
// itself, is expected to differ.
bool is_worth_saying(const OptionSet& options, const std::string& name) {
  constexpr std::string_view kExpected[] = {"load",
                                            "save",
                                            "load_hf",
                                            "save_hf",
                                            "exit_interval",
                                            "metrics_file",
                                            "loss_plot_file",
                                            "page_file",
                                            "tensorboard_dir",
                                            "auto_continue_train",
                                            "async_save",
                                            "exit_duration_in_mins"};
  const Option* option = options.find(name);
  return option != nullptr && option->source().layer != OptionLayer::kModel &&
         std::find(std::begin(kExpected), std::end(kExpected), name) == std::end(kExpected);
}

}  // namespace

Trainer::Trainer(const Resolved& resolved, const Groups& groups, at::Device device, Logger& log,
                 const StopRequest& stop)
    : resolved_(resolved),
      groups_(groups),
      device_(device),
      log_(log),
      stop_(stop),
      built_(build_model(resolved, groups, device)),
      numbers_(count_model(*built_.model, resolved)),
      profiler_(resolved.config.profile, resolved.config.profile.folder(resolved.config.log.tensorboard_dir), groups,
                device, log),
      loss_scaler_(resolved.config.train.loss_scaling, resolved.config.train.fp16) {
  const Config& config = resolved_.config;
  // Weights that are about to be replaced need not be drawn.
  const bool loads_weights = config.checkpoint.load_hf || has_checkpoint(config.checkpoint, groups_);
  std::vector<Parameter*> trainable;
  for (Parameter* param : built_.model->parameters()) {
    if (!loads_weights) param->initialise(static_cast<uint64_t>(config.train.seed));
    if (param->is_trainable()) trainable.push_back(param);
  }
  gradients_ = std::make_unique<GradBuffer>(trainable, groups_.dp_cp, GradBufferOptions{});
  optimizer_ = std::make_unique<Optimizer>(trainable, groups_, config.optimizer, config.runtime.kernels);
  schedule_ = std::make_unique<Schedule>(config.schedule, std::max<int64_t>(resolved_.derived.schedule_samples, 1),
                                         resolved_.derived.global_batch_size);
  train_step_ = std::make_unique<TrainStep>(*built_.model, *gradients_, *optimizer_, groups_, device_);
  if (config.checkpoint.save) saver_ = std::make_unique<CheckpointSaver>(config.checkpoint, groups_, log_);
}

Trainer::~Trainer() = default;

std::string Trainer::model_text() const {
  return fmt::format("{}, {} parameters", built_.family->name, format_count(static_cast<double>(numbers_.parameters)));
}

std::string Trainer::report(const std::string& device_text) const {
  MemoryByOwner memory;
  for (const Parameter* param : built_.model->parameters()) {
    memory.parameters += static_cast<int64_t>(param->value().nbytes());
  }
  memory.gradients = gradients_->num_bytes();
  memory.optimizer = optimizer_->num_bytes();
  const Derived& d = resolved_.derived;
  memory.activations =
      built_.model->cost({d.micro_batch_size, d.seq_length, static_cast<int64_t>(c10::elementSize(d.dtype))})
          .kept_bytes;
  return startup_report(resolved_, numbers_, &memory, device_text);
}

CheckpointState Trainer::checkpoint_state() const {
  CheckpointState state;
  for (const Parameter* param : built_.model->parameters()) state.tensors.push_back(model_tensor(*param));
  for (const OptimizerTensor& entry : optimizer_->state()) {
    state.tensors.push_back({.key = entry.key,
                             .placement = &entry.parameter->placement(),
                             .local = entry.tensor,
                             .range = std::nullopt,
                             .replica_axes = entry.parameter->placement().replica_axes});
  }
  state.train.iteration = iteration_;
  state.train.consumed_train_samples = consumed_samples_;
  state.train.optimizer_step = optimizer_->num_steps();
  state.train.skipped_iterations = num_skipped_;
  state.train.seed = resolved_.config.train.seed;
  state.train.numbers[kScheduleSamples] = static_cast<double>(schedule_samples_);
  state.train.numbers[kSkippedSamples] = static_cast<double>(skipped_samples_);
  loss_scaler_.save(state.train.numbers);
  state.architecture = architecture_of(built_.model->config());
  state.configuration = configuration_of(*resolved_.options);
  return state;
}

void Trainer::load() {
  const CheckpointOptions& options = resolved_.config.checkpoint;
  CheckpointState state = checkpoint_state();
  if (const auto resumed = resume(options, state, groups_, log_)) {
    if (!resumed->has_optimizer) optimizer_->reset_masters();
    if (resumed->is_finetune) return;
    iteration_ = last_saved_iteration_ = state.train.iteration;
    consumed_samples_ = state.train.consumed_train_samples;
    num_skipped_ = state.train.skipped_iterations;
    const auto number = [&](const char* name, int64_t otherwise) {
      const auto found = state.train.numbers.find(name);
      return found == state.train.numbers.end() ? otherwise : static_cast<int64_t>(found->second);
    };
    schedule_samples_ = number(kScheduleSamples, consumed_samples_);
    skipped_samples_ = number(kSkippedSamples, 0);
    loss_scaler_.load(state.train.numbers);
    if (resumed->has_optimizer) optimizer_->set_num_steps(state.train.optimizer_step);
    for (const ConfigurationDifference& difference : resumed->differences) {
      if (!is_worth_saying(*resolved_.options, difference.name)) continue;
      log_.note("{} was {} in the checkpoint and is {} now", difference.name,
                difference.stored.empty() ? "absent" : difference.stored,
                difference.present.empty() ? "absent" : difference.present);
    }
    return;
  }
  if (options.load_hf) {
    load_hf(*options.load_hf, built_.model->parameters(), groups_);
    log_.info("loaded the weights from {}", *options.load_hf);
    optimizer_->reset_masters();
  }
}

StopReason Trainer::run(std::vector<std::unique_ptr<MetricsSink>> sinks) {
  sinks_ = std::move(sinks);
  data_ = make_data_sets(resolved_.config.data, make_data_setup(resolved_), log_);
  StopReason reason = StopReason::kFinished;
  if (!resolved_.config.train.skip_train) reason = train_loop();
  if (reason != StopReason::kSignal) {
    if (reason == StopReason::kFinished) {
      evaluate(Split::kValid, fmt::format("iteration {} on validation set", iteration_));
      evaluate(Split::kTest, fmt::format("iteration {} on test set", iteration_));
    }
    export_hf();
  }
  for (const auto& sink : sinks_) sink->on_end();
  return reason;
}

StopReason Trainer::train_loop() {
  const Config& config = resolved_.config;
  const Derived& d = resolved_.derived;
  if (data_.train == nullptr && iteration_ < d.train_iters) {
    throw UserError("the training split is empty", "give it a weight in split, or a train_data_path");
  }
  StopReason reason = StopReason::kFinished;
  int64_t num_microbatches = d.batches.num_microbatches(consumed_samples_);
  while (iteration_ < d.train_iters) {
    // As Megatron-LM does: a checkpoint at each size of a ramp.
    const int64_t size = d.batches.num_microbatches(consumed_samples_);
    if (size != num_microbatches) save(/*is_last=*/false);
    num_microbatches = size;
    profiler_.begin_iteration(iteration_ + 1);
    train_iteration();
    profiler_.end_iteration(iteration_);
    if (iteration_ % config.train.eval_interval == 0 && iteration_ < d.train_iters) {
      evaluate(Split::kValid, fmt::format("iteration {}", iteration_));
    }
    if (saver_) saver_->poll();
    if (config.checkpoint.is_save_due(iteration_)) save(/*is_last=*/false);
    reason = agreed_stop();
    if (reason != StopReason::kFinished) break;
    if (config.train.exit_interval && iteration_ % *config.train.exit_interval == 0) {
      reason = iteration_ < d.train_iters ? StopReason::kExitInterval : StopReason::kFinished;
      break;
    }
  }
  profiler_.finish();
  if (!config.checkpoint.disable_last_saving || reason != StopReason::kFinished) save(/*is_last=*/true);
  if (saver_) saver_->finish();
  return reason;
}

// Whether a rank was asked to stop, or has run long enough; kFinished when not. The ranks agree, or one would save and
// leave while the others wait for it.
StopReason Trainer::agreed_stop() {
  const std::optional<double>& minutes = resolved_.config.train.exit_duration_in_mins;
  StopReason own = StopReason::kFinished;
  const bool is_over = iteration_ >= resolved_.derived.train_iters;
  if (minutes && !is_over && since_start_.elapsed_s() >= *minutes * 60) own = StopReason::kExitDuration;
  if (stop_.load() != 0) own = StopReason::kSignal;
  const double agreed = groups_.world->reduced(static_cast<double>(own), ReduceOp::kMax, "stop request");
  const auto reason = static_cast<StopReason>(static_cast<int>(agreed));
  if (reason == StopReason::kExitDuration) {
    log_.info("stopping after iteration {}: exit_duration_in_mins {} is over", iteration_, *minutes);
  }
  return reason;
}

void Trainer::train_iteration() {
  const Config& config = resolved_.config;
  const Derived& d = resolved_.derived;
  const Stopwatch watch;
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  const int64_t num_microbatches = d.batches.num_microbatches(consumed_samples_);
  std::vector<Batch> batches;
  for (int64_t m = 0; m < num_microbatches; ++m) {
    batches.push_back(data_.train->read({.consumed_samples = consumed_samples_ + m * chunk,
                                         .micro_batch_size = d.micro_batch_size,
                                         .dp_rank = groups_.dp->rank(),
                                         .dp_size = groups_.dp->size()}));
  }
  const double lr = schedule_->learning_rate(schedule_samples_);
  const StepResult result =
      train_step_->run(batches, lr, schedule_->weight_decay(schedule_samples_), loss_scaler_.scale());
  // Under a dynamic loss scale a gradient that is not finite is how the scale is found.
  if (config.optimizer.check_for_nan_in_loss_and_grad && !loss_scaler_.is_dynamic() &&
      (!result.is_loss_finite || result.optimizer.was_skipped)) {
    stop_on_bad_numbers(result);
  }
  finish_iteration(result, num_microbatches * chunk);
  report_iteration(result, num_microbatches * chunk, lr, watch.elapsed_ms());
}

// Counts the step.
void Trainer::finish_iteration(const StepResult& result, int64_t num_samples) {
  ++iteration_;
  skipped_samples_ += resolved_.derived.batches.asked_samples(consumed_samples_) - num_samples;
  consumed_samples_ += num_samples;
  loss_scaler_.update(!result.optimizer.was_skipped);
  if (!result.optimizer.was_skipped) {
    schedule_samples_ += num_samples;
    return;
  }
  ++num_skipped_;
  if (loss_scaler_.is_dynamic()) {
    log_.info("iteration {} was skipped: its gradient is not finite; the loss scale is {} now", iteration_,
              loss_scaler_.scale());
  } else {
    log_.warn("iteration {} was skipped: its gradient is not finite (first on rank {})", iteration_,
              result.optimizer.first_bad_rank);
  }
}

void Trainer::report_iteration(const StepResult& result, int64_t num_samples, double lr, double elapsed_ms) {
  const Derived& d = resolved_.derived;
  StepRecord record;
  record.iteration = iteration_;
  record.train_iters = d.train_iters;
  record.consumed_samples = consumed_samples_;
  record.skipped_samples = skipped_samples_;
  record.global_batch_size = num_samples;
  for (const NamedLoss& loss : result.losses) record.losses.emplace_back(loss.name, loss.value);
  record.learning_rate = lr;
  record.next_learning_rate = schedule_->learning_rate(schedule_samples_);
  record.loss_scale = loss_scaler_.scale();  // the next step's, as Megatron-LM prints it
  record.is_skipped = result.optimizer.was_skipped;
  if (!record.is_skipped) record.grad_norm = result.optimizer.grad_norm;
  record.is_nan = !result.is_loss_finite;
  if (resolved_.config.optimizer.log_num_zeros_in_grad) {
    record.num_zeros = static_cast<int64_t>(result.optimizer.num_zeros);
  }
  record.elapsed_ms = elapsed_ms;
  record.tokens = num_samples * d.seq_length;
  record.num_devices = static_cast<int>(d.world_size);
  const double part = static_cast<double>(num_samples) / static_cast<double>(d.global_batch_size);
  record.flops = numbers_.flops_per_step * part;
  record.causal_flops = numbers_.flops_per_step_causal * part;
  const MemoryStats memory = memory_stats(device_);
  record.memory_used_bytes = memory.used_bytes;
  record.memory_total_bytes = memory.total_bytes;
  record.memory_reserved_bytes = memory.reserved_bytes;
  record.memory_allocated_bytes = memory.allocated_bytes;
  record.memory_peak_bytes = memory.peak_allocated_bytes;
  for (const auto& sink : sinks_) sink->on_step(record);
}

void Trainer::stop_on_bad_numbers(const StepResult& result) const {
  std::string what;
  for (const NamedLoss& loss : result.losses) what += fmt::format("{} is {}, ", loss.name, loss.value);
  if (result.optimizer.was_skipped) {
    what += fmt::format(
        "the gradient norm is {} (first seen on rank {}{})", result.optimizer.grad_norm,
        result.optimizer.first_bad_rank,
        result.optimizer.bad_parameter.empty() ? "" : fmt::format(", in {}", result.optimizer.bad_parameter));
  }
  throw std::runtime_error(
      fmt::format("iteration {}: {}; samples {} to {} of the run\n  the model was not updated. Lower the learning "
                  "rate, look at those "
                  "samples, or set --no_check_for_nan_in_loss_and_grad to skip such steps",
                  iteration_ + 1, what, consumed_samples_,
                  consumed_samples_ + resolved_.derived.batches.samples(consumed_samples_) - 1));
}

void Trainer::evaluate(Split split, const std::string& when) {
  const TrainOptions& options = resolved_.config.train;
  const Derived& d = resolved_.derived;
  BatchSource* source = data_.of(split);
  if (options.eval_iters == 0 || source == nullptr) return;
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  const int64_t per_evaluation = options.eval_iters * d.num_microbatches * chunk;
  // Each evaluation goes on where the one before ended, as Megatron-LM's iterator does; the test split starts anew.
  const int64_t start = split == Split::kValid ? (iteration_ - 1) / options.eval_interval * per_evaluation : 0;
  const ProfileRange range("evaluate");
  EvaluationSums sums;
  for (int64_t consumed = 0; consumed < per_evaluation; consumed += chunk) {
    const Batch batch = source->read({.consumed_samples = std::max<int64_t>(start, 0) + consumed,
                                      .micro_batch_size = d.micro_batch_size,
                                      .dp_rank = groups_.dp->rank(),
                                      .dp_size = groups_.dp->size()});
    const EvaluationSums part = evaluate_batch(*built_.model, batch, device_);
    sums.loss_sum += part.loss_sum;
    sums.tokens += part.tokens;
  }
  const double loss_sum = groups_.dp_cp->reduced(sums.loss_sum, ReduceOp::kSum, "evaluation loss");
  const double tokens = groups_.dp_cp->reduced(sums.tokens, ReduceOp::kSum, "evaluation tokens");
  ValidationRecord record;
  record.iteration = iteration_;
  record.consumed_samples = consumed_samples_;
  record.set = split == Split::kTest ? "test" : "validation";
  record.when = when;
  record.losses.emplace_back("lm loss", loss_sum / std::max(tokens, 1.0));
  for (const auto& sink : sinks_) sink->on_validation(record);
}

void Trainer::save(bool is_last) {
  if (!saver_) return;
  const ProfileRange range("save checkpoint");
  if (last_saved_iteration_ != iteration_) {
    saver_->save(checkpoint_state());
    last_saved_iteration_ = iteration_;
  }
  if (is_last) saver_->finish();
}

void Trainer::export_hf() {
  const CheckpointOptions& options = resolved_.config.checkpoint;
  if (!options.save_hf) return;
  HfExport settings;
  settings.dtype = resolved_.derived.dtype;
  if (options.load_hf && has_tokenizer_files(*options.load_hf)) settings.tokenizer = *options.load_hf;
  if (resolved_.config.tokenizer.tokenizer_model) settings.tokenizer = *resolved_.config.tokenizer.tokenizer_model;
  save_hf(*options.save_hf, built_.model->parameters(), *built_.family, built_.model->config(), groups_, settings);
  log_.info("exported the model to {}", *options.save_hf);
}

}  // namespace megalith

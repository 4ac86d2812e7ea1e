#include "train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "checkpoint/hf.h"
#include "checkpoint/resume.h"
#include "comm/communicators.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/number_of.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/graph.h"
#include "device/host_sync.h"
#include "device/peak_flops.h"
#include "train/activation_report.h"
#include "train/exported_tokenizer.h"
#include "train/foreign_load.h"
#include "train/frozen_weights.h"
#include "train/printed_nan.h"
#include "train/product_speed.h"

namespace megalith {

Trainer::Trainer(const Resolved& resolved, const Groups& groups, at::Device device, Logger& log,
                 const StopRequest& stop, std::shared_ptr<CollectiveWatch> watch, EraHooks hooks)
    : resolved_(resolved),
      groups_(groups),
      device_(device),
      log_(log),
      stop_(stop),
      task_(make_task(resolved)),
      built_(build_model(resolved, groups, device, !resolved.derived.data_parallel.use_torch_fsdp2)),
      numbers_(count_model(built_, resolved)),
      profiler_(resolved.config.profile, resolved.config.profile.folder(resolved.config.log.tensorboard_dir), groups,
                device, log),
      loss_scaler_(resolved.config.train.loss_scaling, resolved.config.train.fp16),
      loss_watch_(resolved.config.train.faults),
      best_(resolved.config.train.best),
      since_start_(hooks.since_start),
      hooks_(std::move(hooks)) {
  const Config& config = resolved_.config;
  check_frozen(config, built_.parameters(), *groups_.world);
  if (config.train.rate_finder.find_lr) finder_.emplace(config.train.rate_finder);
  connect_for_training(groups_, config.model.has_experts());
  // Weights about to be replaced need not be drawn.
  const CheckpointOptions& checkpoint = resolved_.derived.checkpoint;
  const bool loads_weights = checkpoint.load_hf || foreign_load(resolved_) || foreign_pretrained(resolved_) ||
                             has_checkpoint(checkpoint, groups_);
  data_parallel_ = make_data_parallel(resolved_, built_, groups_, device_);
  const bool begins_heads = checkpoint.load_hf && lacks_heads(*checkpoint.load_hf);
  const auto seed = static_cast<uint64_t>(config.train.seed);
  // Without a folder to load, adapters' base is drawn from the seed, at each start.
  if (!loads_weights || begins_heads || (config.lora.enabled && !checkpoint.load_hf)) {
    data_parallel_->initialise(seed, /*only_adapters=*/false);
  } else if (config.lora.enabled) {
    data_parallel_->initialise(seed, /*only_adapters=*/true);
  }
  runners_ = set_block_runners(built_, *data_parallel_, device_);
  if (runners_.offload && device_.is_cpu()) {
    log_.note("cpu_offloading_num_layers saves nothing on the CPU: host memory is all there is");
  }
  if (device_.is_cpu() && (config.optimizer.optimizer_cpu_offload || config.data_parallel.fsdp_cpu_offload)) {
    log_.note("{} saves nothing on the CPU: host memory is all there is",
              config.data_parallel.fsdp_cpu_offload ? "fsdp_cpu_offload" : "optimizer_cpu_offload");
  }
  optimizer_ = std::make_unique<Optimizer>(*data_parallel_, groups_, config.optimizer, config.runtime.kernels);
  if (config.optimizer.optimizer == OptimizerKind::kMuon) {
    log_.info("parameters on this rank, by the rule that moves them: {}", optimizer_->rules_text());
  }
  if (config.train.thaw_at) {
    optimizer_->let_rest(named_to_freeze(config, built_.parameters()), *config.train.thaw_at);
  }
  curve_ = std::make_unique<LearningRateCurve>(config.learning_rate,
                                               std::max<int64_t>(resolved_.derived.schedule_samples, 1),
                                               resolved_.derived.global_batch_size);
  model_ = std::make_unique<PipelinedModel>(built_.view(), groups_, device_);
  const GraphOptions& graphs = config.runtime.graphs;
  if (graphs.is_on() && can_capture_graphs(device_)) {
    model_->use_graphs(
        std::make_unique<MicrobatchGraphs>(device_, built_.parameters(), graphs.cuda_graph_warmup_steps));
  }
  train_step_ = std::make_unique<TrainStep>(*model_, *task_, *data_parallel_, *optimizer_, groups_, device_);
  if (config.train.faults.check_determinism > 0) {
    check_ = std::make_unique<StepCheck>(*data_parallel_, groups_,
                                         watch ? std::move(watch) : std::make_shared<CollectiveWatch>(),
                                         [this] { return kept_tensors(); });
  }
  references_ = resolved_.kind().make_references(resolved_, {*model_, *data_parallel_, groups_, device_}, log_);
  peak_flops_ = peak_flops(device_, resolved_.derived.dtype).value_or(0);
  if (config.checkpoint.save) saver_ = std::make_unique<CheckpointSaver>(config.checkpoint, groups_, log_);
  if (saver_ && groups_.world->is_first()) saver_->keep(kept_files(resolved_));
  if (saver_ && resolved_.derived.replaces_checkpoints) saver_->replace_earlier_run();
  if (saver_ && config.train.best.keep_best) {
    saver_->retention().keep_last = config.checkpoint.keep_last.value_or(1);
  }
  if (saver_ &&
      (!config.checkpoint.save_interval || resolved_.options->of(config.checkpoint.save_interval_in_mins).is_set())) {
    timed_save_s_ = config.checkpoint.save_interval_in_mins * 60;
  }
}

Trainer::~Trainer() = default;

std::string Trainer::model_text() const {
  return fmt::format("{}, {} parameters", built_.family->name, format_count(static_cast<double>(numbers_.parameters)));
}

std::string Trainer::report(const std::string& device_text, const MemoryEstimate* estimate) const {
  MemoryByOwner memory;
  memory.parameters = data_parallel_->parameter_bytes();
  memory.gradients = data_parallel_->gradient_bytes();
  memory.optimizer = optimizer_->num_bytes();
  memory.on_host = data_parallel_->host_bytes() + optimizer_->host_bytes();
  memory.activations = estimate != nullptr ? estimate->activations + estimate->logits
                                           : measure_activations(resolved_, groups_.mesh, groups_.rank);
  for (const auto& chunk : built_.chunks) {
    if (chunk->recipe_memory() != nullptr) memory.weight_copies += chunk->recipe_memory()->weight_bytes();
  }
  ReportFacts facts{
      .attention = built_.attention, .data = is_data_open_ ? &data_ : nullptr, .flops_per_s = peak_flops_};
  if (model_->uses_graphs()) {
    facts.graphs = fmt::format("forward and backward of a microbatch, from the program's step {} on",
                               resolved_.config.runtime.graphs.cuda_graph_warmup_steps + 1);
  }
  if (device_.is_cpu() && log_.enabled(LogLevel::kInfo)) {
    facts.flops_per_s = measure_products(resolved_.derived.dtype);
    facts.is_measured = true;
  }
  return startup_report(resolved_, numbers_, &memory, device_text, facts);
}

void Trainer::open_data() {
  if (is_data_open_) return;
  data_ = task_->open_data(resolved_.derived.data, make_data_setup(resolved_), log_);
  is_data_open_ = true;
}

StopReason Trainer::run(std::vector<std::unique_ptr<MetricsSink>> sinks) {
  sinks_ = std::move(sinks);
  for (const EventRecord& event : std::exchange(events_, {})) {
    for (const auto& sink : sinks_) sink->on_event(event);
  }
  if (resolved_.config.samples.is_on()) {
    const bool is_shown = groups_.world->is_last();
    samples_ = resolved_.kind().make_samples(resolved_, device_, is_shown, log_);
  }
  open_data();
  if (references_) references_->attach(data_, /*is_at_start=*/iteration_ == 0);
  begin_judging();
  StopReason reason = StopReason::kFinished;
  if (!resolved_.config.train.skip_train) reason = train_loop();
  // On a signal, remaining work is left to the resumed run.
  if (reason == StopReason::kFinished && last_evaluated_iteration_ != iteration_) {
    evaluate(Split::kValid, fmt::format("iteration {} on validation set", iteration_));
    reason = agreed_stop();
  }
  if (reason == StopReason::kFinished && resolved_.config.train.best.load_best_model_at_end) load_best();
  if (reason == StopReason::kFinished) {
    evaluate(Split::kTest, fmt::format("iteration {} on test set", iteration_));
    reason = agreed_stop();
  }
  if (reason == StopReason::kNextEra) return reason;
  if (reason == StopReason::kSignal) {
    if (!resolved_.config.train.skip_train) save(/*is_last=*/true);
  } else {
    export_weights();
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
  std::optional<BatchPrefetcher> prefetcher;
  if (data_.train != nullptr) {
    prefetcher.emplace(*data_.train, config.data.num_workers, /*pins=*/!device_.is_cpu());
  }
  if (check_) check_->remember();
  StopReason reason = agreed_stop();  // a signal may have arrived during startup
  int64_t num_microbatches = d.batches.num_microbatches(consumed_samples_);
  if (best_.ends_run()) {
    log_.info("early_stopping_patience ended this run after iteration {}; raise it to go on", iteration_);
  }
  const auto is_over = [&] {
    return iteration_ >= d.train_iters || best_.ends_run() || (finder_ && finder_->has_diverged());
  };
  const auto is_exit_due = [&] {
    return config.train.exit_interval && iteration_ % *config.train.exit_interval == 0 && iteration_ < d.train_iters;
  };
  if (is_after_step_ && reason == StopReason::kFinished) {
    reason = work_after_step(reason, /*is_cut=*/true);
    if (reason == StopReason::kFinished && is_exit_due()) reason = StopReason::kExitInterval;
  }
  while (reason == StopReason::kFinished && !is_over()) {
    // As in Megatron-LM: a checkpoint at each size of a ramp.
    const int64_t size = d.batches.num_microbatches(consumed_samples_);
    if (size != num_microbatches) {
      reason = settle();
      save(/*is_last=*/false);
      if (reason > StopReason::kSaveDue) break;
    }
    num_microbatches = size;
    profiler_.begin_iteration(iteration_ + 1);
    reason = train_iteration(*prefetcher);
    profiler_.end_iteration(iteration_);
    reason = work_after_step(reason);
    if (reason == StopReason::kFinished && is_kept(iteration_)) hooks_.keep();
    if (reason == StopReason::kExitDuration) {
      log_.info("stopping after iteration {}: exit_duration_in_mins {} is over", iteration_,
                *config.train.exit_duration_in_mins);
    }
    if (reason != StopReason::kFinished) break;
    if (is_exit_due()) reason = StopReason::kExitInterval;
  }
  data_parallel_->wait_for_parameters();  // leaving during a gather would fail other ranks
  profiler_.finish();
  if (reason == StopReason::kNextEra) {
    if (saver_) saver_->finish();
    return reason;
  }
  if (!config.checkpoint.disable_last_saving || reason != StopReason::kFinished) save(/*is_last=*/true);
  if (saver_) saver_->finish();
  return reason;
}

StopReason Trainer::work_after_step(StopReason reason, bool is_cut) {
  const Config& config = resolved_.config;
  const bool is_due_by_time = reason == StopReason::kSaveDue || (is_cut && has_lost_save_);
  const bool is_checked = !is_cut && config.train.check_sync && iteration_ % *config.train.check_sync == 0;
  if (is_checked) check_replicas();
  const bool is_end = iteration_ == resolved_.derived.train_iters;
  // A judged run's last evaluation comes before its last checkpoint, which remembers it.
  const bool is_evaluated = is_end ? best_.is_on() : iteration_ % config.train.eval_interval == 0;
  if (is_evaluated && !(is_cut && last_evaluated_iteration_ == iteration_)) {
    evaluate(Split::kValid, fmt::format("iteration {}{}", iteration_, is_end ? " on validation set" : ""));
    tell_early_end();
  }
  const bool is_sampled = !is_cut && config.samples.is_due(iteration_);
  if (is_sampled) sample();
  if (saver_) saver_->poll();
  const bool is_due_by_count = config.checkpoint.is_save_due(iteration_) || (is_evaluated && best_.keeps(iteration_));
  const bool is_saved = is_due_by_count || is_due_by_time;
  if (is_saved) save(/*is_last=*/false, /*is_passing=*/!is_due_by_count);
  // Ranks voted during the step; after long work they vote again.
  if (is_checked || is_evaluated || is_sampled || is_saved) reason = agreed_stop(own_stop(iteration_));
  return reason == StopReason::kSaveDue ? StopReason::kFinished : reason;  // the next step's ranks vote again
}

// The agreed reason to end the run now, from this rank or a signal to any; else kFinished. Without agreement one would
// save and leave while others wait.
StopReason Trainer::agreed_stop(StopReason own) {
  if (stop_.load() != 0) own = StopReason::kSignal;
  const double agreed = groups_.world->reduced(static_cast<double>(own), ReduceOp::kMax, "stop request");
  return static_cast<StopReason>(static_cast<int>(agreed));
}

// This rank's vote after this many iterations: a signal, the run's time limit, an overdue checkpoint.
StopReason Trainer::own_stop(int64_t done) const {
  if (stop_.load() != 0) return StopReason::kSignal;
  const std::optional<double>& minutes = resolved_.config.train.exit_duration_in_mins;
  const bool is_over = done >= resolved_.derived.train_iters;
  const bool has_taken_long = minutes && !is_over && since_start_.elapsed_s() >= *minutes * 60;
  if (has_taken_long) return StopReason::kExitDuration;
  if (hooks_.has_joiners && !is_over && hooks_.has_joiners()) return StopReason::kNextEra;
  const bool is_save_due = timed_save_s_ > 0 && !is_over && since_saved_.elapsed_s() >= timed_save_s_;
  return is_save_due ? StopReason::kSaveDue : StopReason::kFinished;
}

// This rank's microbatches of the step at this position in the data.
std::vector<DataPosition> Trainer::positions_from(int64_t consumed_samples) const {
  const Derived& d = resolved_.derived;
  std::vector<DataPosition> positions;
  const int64_t num_microbatches = d.batches.num_microbatches(consumed_samples);
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  for (int64_t m = 0; m < num_microbatches; ++m) {
    positions.push_back({.consumed_samples = consumed_samples + m * chunk,
                         .micro_batch_size = d.micro_batch_size,
                         .dp_rank = groups_.dp->rank(),
                         .dp_size = groups_.dp->size(),
                         .step_first = consumed_samples,
                         .step_samples = num_microbatches * chunk});
  }
  return positions;
}

StopReason Trainer::train_iteration(BatchPrefetcher& prefetcher) {
  IssuedStep step = issue_step(prefetcher);
  StopReason reason = settle();
  ++num_steps_;
  if (num_steps_ == 1 && hooks_.on_first_step) hooks_.on_first_step();
  // The step issued after the spike began from discarded weights, and is repeated.
  if (has_rolled_back_) return reason;
  issued_ = std::move(step);
  if (loss_scaler_.is_dynamic()) {
    in_step([&] {
      const ProfileRange range("read the step, on which the next one's loss scale depends");
      reason = std::max(reason, settle());
    });
  } else if (reason != StopReason::kFinished || is_awaited(iteration_)) {
    reason = std::max(reason, settle());
  }
  return reason;
}

// A process's first step may wait: libraries try algorithms, and reusable objects are made.
void Trainer::in_step(const std::function<void()>& part) {
  if (resolved_.config.runtime.device.fail_on_host_sync && num_steps_ > 0) {
    without_host_sync(device_, part);
  } else {
    part();
  }
}

bool Trainer::is_kept(int64_t iteration) const {
  return hooks_.keep && iteration % resolved_.config.train.faults.memory_checkpoint_interval == 0;
}

// True if this iteration's numbers are read before anything else.
bool Trainer::is_awaited(int64_t iteration) const {
  if (device_.is_cpu()) return true;  // issued steps are done
  if (check_) return true;            // the updated state is checked first
  if (finder_) return true;           // may end the run
  if (is_kept(iteration)) return true;
  if (iteration >= resolved_.derived.train_iters) return true;
  if (resolved_.config.log.is_params_norm_due(iteration, resolved_.derived.train_iters)) return true;
  const TrainOptions& train = resolved_.config.train;
  const auto divides = [&](const auto& interval) { return interval && iteration % *interval == 0; };
  return divides(train.check_sync) || divides(train.exit_interval) || iteration % train.eval_interval == 0 ||
         resolved_.config.samples.is_due(iteration) || resolved_.config.checkpoint.is_save_due(iteration);
}

Trainer::IssuedStep Trainer::issue_step(BatchPrefetcher& prefetcher) {
  const Config& config = resolved_.config;
  const Stopwatch since_begin;
  const std::vector<DataPosition> positions = positions_from(consumed_samples_);
  const int64_t num_samples =
      std::ssize(positions) * resolved_.derived.micro_batch_size * resolved_.derived.data_parallel_size;
  std::vector<Batch> batches = prefetcher.take(positions);
  if (references_) references_->add_to(batches);
  if (iteration_ + 1 < resolved_.derived.train_iters) {
    prefetcher.prefetch(positions_from(consumed_samples_ + num_samples));
  }
  LearningRates rates = finder_ ? finder_->rate(iteration_ + 1) : curve_->learning_rates(schedule_samples_);
  rates.of_adapters_b *= config.lora.loraplus_lr_ratio;
  const bool dumps_pipeline = config.profile.dump_pp_data && iteration_ + 1 == std::min(config.profile.profile_step_end,
                                                                                        resolved_.derived.train_iters);
  if (dumps_pipeline) model_->align_next_run();
  const double loss_limit = loss_watch_.limit(iteration_ + 1);
  under_way_ = {
      .num_samples = num_samples, .lr = rates.lr, .loss_limit = loss_limit, .since_begin = since_begin};
  std::optional<PendingStep> pending;
  optimizer_->set_iteration(iteration_ + 1);
  try {
    in_step([&] {
      pending = train_step_->run(
          batches, rates, curve_->weight_decay(schedule_samples_), loss_scaler_.scale(),
          [&] { return static_cast<int>(own_stop(iteration_ + 1)); }, guards_of(loss_limit));
    });
  } catch (const StepFault& fault) {
    const std::string_view text = fault.what();
    const EventRecord event{.iteration = iteration_ + 1,
                            .kind = "step_fault",
                            .text = std::string(text.substr(0, text.find('\n'))),
                            .begin_sample = consumed_samples_,
                            .end_sample = consumed_samples_ + num_samples};
    for (const auto& sink : sinks_) sink->on_event(event);  // the log has it as the run's end
    save_before(fault);
    throw;
  }
  if (check_) {
    data_parallel_->wait_for_parameters();
    check_->remember();
  }
  if (dumps_pipeline) dump_pipeline();
  return count_step(*pending);
}

Trainer::IssuedStep Trainer::count_step(PendingStep pending) {
  const int64_t num_samples = under_way_.num_samples;
  skipped_samples_ += resolved_.derived.batches.asked_samples(consumed_samples_) - num_samples;
  consumed_samples_ += num_samples;
  schedule_samples_ += num_samples;
  is_after_step_ = true;
  return {.pending = std::move(pending),
          .iteration = ++iteration_,
          .num_samples = num_samples,
          .consumed_samples = consumed_samples_,
          .skipped_samples = skipped_samples_,
          .schedule_samples = schedule_samples_,
          .lr = under_way_.lr,
          .loss_limit = under_way_.loss_limit,
          .since_begin = under_way_.since_begin};
}

StopReason Trainer::settle() {
  has_rolled_back_ = false;
  if (!issued_) return StopReason::kFinished;
  IssuedStep step = *std::exchange(issued_, std::nullopt);
  const StepResult result = step.pending.read();
  // A dynamic loss scale expects non-finite gradients.
  const OptimizerOptions& optimizer = resolved_.config.optimizer;
  const bool has_plan = resolved_.config.train.faults.leaves_out_spikes() || optimizer.grad_norm_skip_threshold;
  const bool is_left_out = has_plan && result.optimizer.was_skipped();
  if (optimizer.check_for_nan_in_loss_and_grad && !loss_scaler_.is_dynamic() && !is_left_out && !finder_ &&
      (!result.is_loss_finite || !result.optimizer.is_finite())) {
    stop_on_bad_numbers(step, result);
  }
  loss_scaler_.update(result.optimizer.is_finite());
  loss_watch_.add(step.iteration, result.losses.front().value);
  if (finder_) finder_->add(step.iteration, result.losses.front().value);
  if (result.optimizer.num_sanitized > 0) {
    log_.warn("iteration {}: {} of the gradient were not finite and are 0 now (sft_sanitize_nan_grads)", step.iteration,
              number_of(static_cast<int64_t>(result.optimizer.num_sanitized), "element", "elements"));
  }
  if (result.optimizer.was_skipped()) {
    // The step issued meanwhile, if any, used the rates after this one's.
    schedule_samples_ -= step.num_samples;
    step.schedule_samples -= step.num_samples;
    count_skipped(step, result);
  }
  // A step read late begins, for timing, when the previous one was read.
  const double elapsed_ms = std::min(step.since_begin.elapsed_ms(), since_settled_.elapsed_ms());
  since_settled_.restart();
  report_iteration(step, result, elapsed_ms);
  if (is_spike(step, result)) act_on_spike(step, result);
  return static_cast<StopReason>(result.vote);
}

// Writes the trace of the first pipeline.
void Trainer::dump_pipeline() {
  const std::string text = model_->gather_trace();
  if (text.empty() || !groups_.world->is_first()) return;
  const ProfileOptions& options = resolved_.config.profile;
  const std::filesystem::path folder = options.dump_pp_data_dir ? std::filesystem::path(*options.dump_pp_data_dir)
                                                                : options.folder(resolved_.config.log.tensorboard_dir);
  try {
    write_file_atomic(folder / "pipeline_trace.json", text + "\n");
    log_.info("wrote {}", (folder / "pipeline_trace.json").string());
  } catch (const UserError& error) {  // does not end the run
    log_.warn("dump_pp_data: {}", error.message());
  }
}

void Trainer::count_skipped(const IssuedStep& step, const StepResult& result) {
  ++num_skipped_;
  if (result.optimizer.skipped == SkipReason::kLargeNorm) {
    tell({.iteration = step.iteration,
          .kind = "large_gradient",
          .text = fmt::format("iteration {} was skipped: its gradient norm {:.6g} is above grad_norm_skip_threshold {}",
                              step.iteration, result.optimizer.grad_norm,
                              *resolved_.config.optimizer.grad_norm_skip_threshold),
          .begin_sample = step.consumed_samples - step.num_samples,
          .end_sample = step.consumed_samples});
  } else if (result.optimizer.skipped == SkipReason::kNotAllowed) {
    // reported by act_on_spike()
  } else if (loss_scaler_.is_dynamic()) {
    log_.info("iteration {} was skipped: its gradient is not finite; the loss scale is {} now", step.iteration,
              loss_scaler_.scale());
  } else {
    log_.warn("iteration {} was skipped: its gradient is not finite (first on rank {})", step.iteration,
              result.optimizer.first_bad_rank);
  }
}

void Trainer::report_iteration(const IssuedStep& step, const StepResult& result, double elapsed_ms) {
  const Derived& d = resolved_.derived;
  StepRecord record;
  record.iteration = step.iteration;
  record.train_iters = d.train_iters;
  record.consumed_samples = step.consumed_samples;
  record.skipped_samples = step.skipped_samples;
  record.global_batch_size = step.num_samples;
  const std::vector<std::string> measured = task_->measured_names();
  for (const NamedLoss& loss : result.losses) {
    // No row of this batch has it, such as the loss of a data set.
    if (loss.weight == 0 && std::ranges::count(measured, loss.name) > 0) continue;
    record.losses.emplace_back(loss.name, without_nan_sign(loss.value));
  }
  record.observations = result.observations;
  record.learning_rate = step.lr;
  record.next_learning_rate =
      finder_ ? finder_->rate(step.iteration + 1) : curve_->learning_rate(step.schedule_samples);
  record.loss_scale = loss_scaler_.scale();  // the next step's, as in Megatron-LM
  record.is_skipped = result.optimizer.was_skipped();
  record.is_repeated = step.iteration >= first_repeated_ && step.iteration <= last_repeated_;
  if (!record.is_skipped) record.grad_norm = without_nan_sign(result.optimizer.grad_norm);
  record.is_nan = !result.is_loss_finite;
  if (resolved_.config.optimizer.log_num_zeros_in_grad) {
    record.num_zeros = static_cast<int64_t>(result.optimizer.num_zeros);
  }
  if (resolved_.config.optimizer.sft_sanitize_nan_grads) {
    record.num_sanitized = static_cast<int64_t>(result.optimizer.num_sanitized);
  }
  if (resolved_.config.log.is_params_norm_due(step.iteration, d.train_iters) && !is_between_eras_) {
    record.params_norm = optimizer_->params_norm();  // this step's, because it was awaited
  }
  record.elapsed_ms = elapsed_ms;
  record.tokens = step.num_samples * resolved_.kind().tokens_per_sample(resolved_);
  // Losses of pairs are divided by pairs.
  if (resolved_.config.data.sft.has_paths() && !references_) {
    record.loss_tokens = static_cast<int64_t>(std::llround(result.losses.front().weight));
  }
  resolved_.kind().describe(resolved_, record);
  record.num_devices = static_cast<int>(d.world_size);
  const double part = static_cast<double>(step.num_samples) / static_cast<double>(d.global_batch_size);
  record.flops = numbers_.flops_per_step_primus * part;
  record.model_flops = numbers_.flops_per_step * part;
  record.causal_flops = numbers_.flops_per_step_seen * part;
  record.peak_flops_per_device = peak_flops_;
  update_memory(step.iteration);
  record.memory_used_bytes = memory_.used_bytes;
  record.memory_total_bytes = memory_.total_bytes;
  record.memory_reserved_bytes = memory_.reserved_bytes;
  record.memory_allocated_bytes = memory_.allocated_bytes;
  record.memory_peak_bytes = memory_.peak_allocated_bytes;
  for (const auto& sink : sinks_) sink->on_step(record);
}

// Querying a GPU's memory takes up to a millisecond and delays launches: only for shown iterations.
void Trainer::update_memory(int64_t iteration) {
  const bool is_shown =
      iteration % resolved_.config.log.log_interval == 0 || iteration == resolved_.derived.train_iters;
  if (device_.is_cpu() || memory_.total_bytes == 0 || is_shown) {
    memory_ = memory_stats(device_);
  } else {
    update_allocator_stats(memory_, device_);
  }
}

void Trainer::evaluate(Split split, const std::string& when) {
  const TrainOptions& options = resolved_.config.train;
  if (options.eval_iters < 1) return;
  const Derived& d = resolved_.derived;
  const int64_t per_evaluation = options.eval_iters * d.num_microbatches * d.micro_batch_size * d.data_parallel_size;
  // Evaluations continue where the last one ended, like Megatron-LM's iterator; the test split starts anew.
  const int64_t start = split == Split::kValid ? (iteration_ - 1) / options.eval_interval * per_evaluation : 0;
  std::vector<ValidationRecord> records;
  for (const NamedSource& set : data_.evaluated(split)) {
    records.push_back(evaluate_set(set, std::max<int64_t>(start, 0), when));
  }
  if (split == Split::kValid && !records.empty()) {
    last_evaluated_iteration_ = iteration_;
    judge(records);
  }
  for (const ValidationRecord& record : records) {
    for (const auto& sink : sinks_) sink->on_validation(record);
  }
}

ValidationRecord Trainer::evaluate_set(const NamedSource& set, int64_t first_sample, const std::string& when) {
  const Derived& d = resolved_.derived;
  const int64_t chunk = d.micro_batch_size * d.data_parallel_size;
  const int64_t per_evaluation = resolved_.config.train.eval_iters * d.num_microbatches * chunk;
  const ProfileRange range("evaluate");
  EvaluationSums sums;
  Progress progress(log_, set.name == "test" ? "test" : "evaluation", per_evaluation, "samples");
  for (int64_t consumed = 0; consumed < per_evaluation;) {
    // As many microbatches as a step, to fill a pipeline.
    std::vector<Batch> batches;
    for (int64_t m = 0; m < d.num_microbatches; ++m, consumed += chunk) {
      batches.push_back(set.source->read({.consumed_samples = first_sample + consumed,
                                          .micro_batch_size = d.micro_batch_size,
                                          .dp_rank = groups_.dp->rank(),
                                          .dp_size = groups_.dp->size()}));
    }
    if (references_) references_->add_to(batches);
    sums.add(evaluate_batches(*model_, *task_, batches, groups_, device_));
    progress.set(consumed);
  }
  progress.finish();
  sums.losses = task_->concluded(sum_over_data(sums, groups_).losses);
  ValidationRecord record;
  record.iteration = iteration_;
  record.consumed_samples = consumed_samples_;
  record.set = set.name;
  record.when = when;
  for (const LossSum& loss : sums.losses) record.losses.emplace_back(loss.name, without_nan_sign(loss.mean()));
  return record;
}

// On all ranks: weights may be sharded, and other ranks would only wait.
void Trainer::sample() {
  const ProfileRange range("sample");
  samples_->show(*model_, iteration_, sinks_);
}

}  // namespace megalith

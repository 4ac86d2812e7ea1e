// One rank's training loop and its objects, built from a resolved configuration.
//
// An accelerator receives the next step before the host reads the last one's numbers (effects: docs/operating.md),
// unless they are needed at once: is_awaited().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/log.h"
#include "core/time.h"
#include "data/batch_prefetcher.h"
#include "device/memory.h"
#include "metrics/step_record.h"
#include "train/best_watch.h"
#include "train/config.h"
#include "train/eras.h"
#include "train/loss_watch.h"
#include "train/memory_estimate.h"
#include "train/profile.h"
#include "train/report.h"
#include "train/setup.h"
#include "train/step.h"
#include "train/step_check.h"

namespace megalith {

// Set by a signal handler, read at step boundaries, also before the first step: 0, or the signal's number.
using StopRequest = std::atomic<int>;

// kSaveDue ends nothing: a vote for a checkpoint by time. kNextEra: replacements of lost ranks wait to join (eras.h).
enum class StopReason { kFinished, kSaveDue, kNextEra, kExitInterval, kExitDuration, kSignal };

// A trainer's view of a run that outlives its ranks. Unset functions: the run does not.
struct EraHooks {
  std::function<bool()> has_joiners = {};   // on one rank, at each step
  std::function<void()> check_ranks = {};   // throws if collectives may have failed
  std::function<void()> on_first_step = {};
  std::function<void()> keep = {};  // every memory_checkpoint_interval steps, on all ranks
  Stopwatch since_start;  // of this process
};

class Trainer {
 public:
  // All arguments but hooks outlive the trainer.
  // watch  of the groups' collectives, for check_determinism; null: no collectives to watch
  Trainer(const Resolved& resolved, const Groups& groups, at::Device device, Logger& log, const StopRequest& stop,
          std::shared_ptr<CollectiveWatch> watch = nullptr, EraHooks hooks = {});
  ~Trainer();

  // Loads --load, --pretrained_checkpoint or --load_hf. UserError on failure.
  void load();
  std::string model_text() const;  // "llama, 12.6 M parameters"
  // Opens the data sets, building uncached indices. run() calls it if needed.
  void open_data();
  // estimate  of this rank, if known
  std::string report(const std::string& device_text, const MemoryEstimate* estimate = nullptr) const;
  // Trains until the end, exit_interval, exit_duration_in_mins or a signal; evaluates and saves as configured. The
  // sinks get this rank's records; non-reporting ranks pass none. A failed collective means a lost peer: its error
  // propagates and nothing is saved, as checkpoints need every rank. StepFault when check_determinism finds one.
  StopReason run(std::vector<std::unique_ptr<MetricsSink>> sinks);

  // ---- Between eras (trainer_eras.cc)
  // This rank's part, without communication: after run() returned kNextEra, or threw because ranks were lost, in which
  // case the step under way is completed here if it can be.
  CarriedRun carry();
  // Makes the step that carry() lacked from another rank's CarriedRun::numbers, and carries again.
  CarriedRun carry_completed(const std::string& numbers);
  // Instead of load(): takes the last era's state, where there is one, and gives it to ranks that have none; then
  // compares all replicas by checksum.
  //   giver   the first world rank with a state
  void take_over(const CarriedRun* carried, int giver);
  // This rank's part in (n) bytes of host memory, for MemoryCheckpoint; between steps.
  at::Tensor pack_state() const;
  // The tensors of the result are views of the bytes.
  CarriedRun unpack_state(const at::Tensor& bytes) const;
  // Events of this iteration that are recorded when run() begins.
  //   last_made  before ranks were lost
  void announce(std::vector<EventRecord> events, int64_t last_made = 0);
  // Those not recorded yet.
  std::vector<EventRecord> take_events() { return std::exchange(events_, {}); }

  const BuiltModel& model() const { return built_; }
  int64_t iteration() const { return iteration_; }
  // After run(); null unless find_lr is on.
  const RateFinder* rate_finder() const { return finder_ ? &*finder_ : nullptr; }
  // True if the folder of --save has the current iteration's checkpoint.
  bool is_saved() const { return last_saved_iteration_ == iteration_; }

 private:
  // A step whose numbers are on their way. Counters are already advanced as if it were made.
  struct IssuedStep {
    PendingStep pending;
    int64_t iteration, num_samples;
    int64_t consumed_samples, skipped_samples, schedule_samples;  // including its own
    double lr;
    double loss_limit;  // above which its loss is a spike
    Stopwatch since_begin;
  };

  // Loads --load_hf into these tensors.
  void load_base(const std::vector<CheckpointTensor>& tensors);
  // Weights and optimizer state: what changes only with a step.
  std::vector<CheckpointTensor> kept_tensors() const;
  CheckpointState checkpoint_state() const;
  // Takes a checkpoint's schedules, loss scale and losses; its counters are the caller's.
  void take_numbers(const TrainState& state);
  // All counters of a TrainState, out and in.
  void fill_counters(TrainState& state) const;
  void take_counters(const TrainState& state);
  StopReason train_loop();
  // Does what is due after iteration_: evaluation, samples, checkpoints. Returns the ranks' vote after it.
  //   is_cut  the era ended meanwhile: does what is left of it
  StopReason work_after_step(StopReason reason, bool is_cut = false);
  void check_replicas();
  StopReason agreed_stop(StopReason own = StopReason::kFinished);
  StopReason own_stop(int64_t done) const;
  std::vector<DataPosition> positions_from(int64_t consumed_samples) const;
  // Returns the ranks' agreed reason to stop, as far as they could vote during the step.
  StopReason train_iteration(BatchPrefetcher& prefetcher);
  IssuedStep issue_step(BatchPrefetcher& prefetcher);
  bool is_awaited(int64_t iteration) const;
  bool is_kept(int64_t iteration) const;  // in memory
  // Runs a part of a step, in which the host must not wait if so configured.
  void in_step(const std::function<void()>& part);
  // Reads, counts and reports the issued step, if any; returns its votes.
  StopReason settle();
  void dump_pipeline();
  void count_skipped(const IssuedStep& step, const StepResult& result);
  // ---- trainer_faults.cc
  StepGuards guards_of(double loss_limit);
  bool is_spike(const IssuedStep& step, const StepResult& result) const;
  void act_on_spike(const IssuedStep& step, const StepResult& result);
  // Without a checkpoint nothing is loaded, as with skip.
  void roll_back(const IssuedStep& step, const std::string& what);
  void tell(const EventRecord& event);
  void save_before(const StepFault& fault);
  void report_iteration(const IssuedStep& step, const StepResult& result, double elapsed_ms);
  void update_memory(int64_t iteration);
  [[noreturn]] void stop_on_bad_numbers(const IssuedStep& step, const StepResult& result) const;
  void evaluate(Split split, const std::string& when);
  ValidationRecord evaluate_set(const NamedSource& set, int64_t first_sample, const std::string& when);
  // ---- trainer_best.cc
  // Finds the figure that evaluations are judged by, and takes up what the checkpoint's run found.
  void begin_judging();
  void judge(std::vector<ValidationRecord>& records);
  void tell_early_end();
  // Loads the best checkpoint's weights, for what follows training; nothing is saved from then on.
  void load_best();
  void sample();
  void save(bool is_last, bool is_passing = false);
  void export_weights();
  void export_adapter(const std::string& folder);

  // ---- trainer_eras.cc
  CheckpointState carried_state() const;
  void share_state(CheckpointState& state, int giver, bool is_taker);
  void give_state(CheckpointState& state, int giver, bool is_taker);
  int agree_on_counters(TrainState& state, int giver);
  void agree_on_work(int giver, const CarriedRun* carried);
  IssuedStep count_step(PendingStep pending);

  const Resolved& resolved_;
  const Groups& groups_;
  at::Device device_;
  Logger& log_;
  const StopRequest& stop_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;

  std::unique_ptr<Task> task_;
  BuiltModel built_;
  ModelNumbers numbers_;
  std::unique_ptr<DataParallel> data_parallel_;
  BlockRunners runners_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LearningRateCurve> curve_;
  std::unique_ptr<PipelinedModel> model_;
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<References> references_;  // for pairs of answers; null for other data
  DataSets data_;
  bool is_data_open_ = false;
  double peak_flops_ = 0;  // of the device, per second; 0: unknown
  Profiler profiler_;
  std::unique_ptr<RunSamples> samples_;
  std::unique_ptr<CheckpointSaver> saver_;    // null without --save
  LossScaler loss_scaler_;
  LossWatch loss_watch_;
  BestWatch best_;
  size_t judged_figure_ = 0;          // among all figures of an evaluation
  std::optional<RateFinder> finder_;
  std::unique_ptr<StepCheck> check_;  // null without check_determinism
  std::string base_checksum_;         // of the model under the adapters; empty if drawn from the seed, or without
                                      // adapters
  Stopwatch since_start_, since_saved_;
  double timed_save_s_ = 0;  // save_interval_in_mins in effect; 0: none

  // Read one step late if the device is not the host; and the time since a step was read.
  std::optional<IssuedStep> issued_;
  // The issued step's numbers, counted once it is made.
  struct StepUnderWay {
    int64_t num_samples = 0;
    double lr = 0, loss_limit = 0;
    Stopwatch since_begin;
  } under_way_;
  EraHooks hooks_;
  bool is_between_eras_ = false;  // no rank answers
  bool is_after_step_ = false;    // iteration_ was made by this run, not loaded
  bool has_lost_save_ = false;    // a checkpoint was being written beside training when the last era ended
  std::vector<EventRecord> events_;  // to record when run() begins
  int64_t first_repeated_ = 0, last_repeated_ = -1;  // iterations made again after ranks were lost
  Stopwatch since_settled_;
  int64_t num_steps_ = 0;  // since the program's start
  MemoryStats memory_;

  int64_t iteration_ = 0, consumed_samples_ = 0;
  int64_t schedule_samples_ = 0;  // consumed by steps that were made: the schedules' position
  int64_t skipped_samples_ = 0;   // by decrease_batch_size_if_needed
  int64_t num_skipped_ = 0;
  int64_t num_rollbacks_ = 0;
  bool has_rolled_back_ = false;  // the last step read was rolled back
  int64_t last_saved_iteration_ = -1, last_evaluated_iteration_ = -1;
};

}  // namespace megalith

// One optimizer step: forward and backward of every microbatch, reduction, clipping, update.
//
// The objective sums a task's losses over all microbatches and ranks, each divided by its weight in the global batch,
// counted before the first forward. So ranks with fewer valid tokens weigh less, and results do not depend on layout or
// micro_batch_size.
//
// Ranks exchange twice: weights first, the rest (train/step_statistics.h) once gradients are complete.
//
// An accelerator's host issues a step without waiting, perhaps before reading the last one's result: the device decides
// clipping and whether the step is made.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "data/batch.h"
#include "metrics/observed_values.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "train/pipelined_model.h"
#include "train/step_statistics.h"
#include "train/task.h"

namespace megalith {

struct NamedLoss {
  std::string name;
  double value;
  double weight;  // its divisor: for texts, the counted tokens
};

struct StepResult {
  std::vector<NamedLoss> losses;  // global averages, the same on all ranks
  bool is_loss_finite = true;
  std::vector<ObservedValues> observations;  // of the global batch, the same on all ranks
  int vote = 0;                              // the highest of all ranks
  OptimizerStep optimizer;
};

class TrainStep;

// An issued step, its numbers on their way to the host. If not made (OptimizerStep), the device has left model and
// optimizer unchanged.
class PendingStep {
 public:
  // Waits until the step's gradients are done. The TrainStep must outlive this. bad_parameter is known only until a
  // later step begins.
  StepResult read() const;

 private:
  friend class TrainStep;
  PendingStep(const TrainStep& step, std::shared_ptr<StepStatistics> statistics, double loss_scale, double loss_limit)
      : step_(&step), statistics_(std::move(statistics)), loss_scale_(loss_scale), loss_limit_(loss_limit) {}

  const TrainStep* step_;
  std::shared_ptr<StepStatistics> statistics_;
  double loss_scale_, loss_limit_;
};

// A step's conditions and passes before its update.
struct StepGuards {
  // Makes the step only if its first loss is not above this and not NaN; infinity: no condition.
  double loss_limit = std::numeric_limits<double>::infinity();
  // Runs the given pass, the whole step's forward and backward, which returns this rank's losses
  // (StepStatistics::local), perhaps repeatedly from the same state. Empty: once.
  std::function<void(const std::function<at::Tensor()>& pass)> run_passes = {};
  // If set, the step's numbers are read on the host before the update; throws if they cannot be trusted.
  std::function<void()> before_update = {};
};

class TrainStep {
 public:
  // All outlive it.
  TrainStep(PipelinedModel& model, const Task& task, DataParallel& data, Optimizer& optimizer, const Groups& groups,
            at::Device device);

  // batches     this rank's microbatches, in order; whole rows, of which context-parallel ranks take their parts
  // loss_scale  multiplies the objective; the optimizer divides the gradient by it. Reported losses exclude it
  // vote        called once when gradients are complete: this rank's wish to stop (StepStatistics::vote)
  PendingStep run(const std::vector<Batch>& batches, const LearningRates& rates, double weight_decay,
                  double loss_scale = 1.0, const std::function<int()>& vote = {}, const StepGuards& guards = {});

  // ---- After a run() that threw because other ranks were lost
  // The update had begun. It touches only this rank's tensors, so the step is made; complete() does the rest.
  bool is_updating() const { return phase_ == Phase::kUpdating; }
  // This rank's gradients are complete, and only the step's numbers are missing.
  bool awaits_numbers() const { return phase_ == Phase::kExchanging; }
  // Makes the rest of the step. numbers: numbers() of another rank that made it; unread if is_updating().
  PendingStep complete(const at::Tensor& numbers);
  // StepStatistics::numbers() of the last step made; undefined before the first. Waits for them.
  at::Tensor numbers() const { return statistics_of_made_ ? statistics_of_made_->numbers() : at::Tensor(); }

  // Forward and backward only: leaves complete gradients, times loss_scale, in the buffers.
  StepResult compute_gradients(const std::vector<Batch>& batches, double loss_scale = 1.0);
  // run()'s work after the update, when the caller updates: the model's own changes by compute_gradients()'s
  // observations, if the optimizer's last step is made.
  void after_update();

 private:
  friend class PendingStep;
  void accumulate(const std::vector<Batch>& batches, double loss_scale);
  static StepResult result_of(StepStatistics& statistics);
  enum class Phase { kPasses, kExchanging, kUpdating, kMade };
  struct Update {
    LearningRates rates{0};
    double weight_decay = 0, loss_scale = 1, loss_limit = 0;
  };
  void update();
  PendingStep made();

  PipelinedModel& model_;
  const Task& task_;
  DataParallel& data_;
  Optimizer& optimizer_;
  const Groups& groups_;
  at::Device device_;
  std::optional<c10::Stream> copies_;           // for copying inputs; unset on a CPU
  std::shared_ptr<StepStatistics> statistics_, statistics_of_made_;  // of the last step, and of the last one made
  Phase phase_ = Phase::kMade;
  Update update_;
};

// The task's measurements of this rank's microbatches, without gradients; the same on all ranks of the pipeline. rows,
// if given, receives each microbatch's (b, s) losses, or logits (b, n) if the task evaluates those, on the CPU; of
// whole rows, like batches.
struct EvaluationSums {
  std::vector<LossSum> losses;  // in the order of Task::evaluated_names()

  void add(const EvaluationSums& more);
  double loss() const { return losses.at(0).mean(); }
};
EvaluationSums evaluate_batches(PipelinedModel& model, const Task& task, const std::vector<Batch>& batches,
                                const Groups& groups, at::Device device,
                                std::vector<at::Tensor>* rows = nullptr);
// Sums over all ranks with other data.
EvaluationSums sum_over_data(EvaluationSums sums, const Groups& groups);

}  // namespace megalith

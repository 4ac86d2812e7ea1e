// One optimizer step: forward and backward of every microbatch, reduction, clipping, update.
//
// The objective is the sum of a task's losses over all microbatches and ranks, each divided by its weight in the whole
// global batch, which is counted before the first forward pass. So a rank with fewer valid tokens weighs less, and
// every layout and every micro_batch_size computes the same number.
//
// The ranks exchange twice: the weights, before anything is computed, and everything else (train/step_statistics.h)
// once the gradients are complete.
//
// On an accelerator the host issues a step and waits for none of it: it may issue the next one before it reads what
// became of this one. What must be known within the step (clipping, whether it is made at all) is decided on the
// device.
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
#include "tasks/task.h"
#include "train/pipelined_model.h"
#include "train/step_statistics.h"

namespace megalith {

struct NamedLoss {
  std::string name;
  double value;
  double weight;  // what it was divided by: of a text, the tokens that count
};

struct StepResult {
  std::vector<NamedLoss> losses;  // averaged over the global batch, the same on all ranks
  bool is_loss_finite = true;
  std::vector<ObservedValues> observations;  // of the global batch, the same on all ranks
  int vote = 0;                              // the highest that a rank gave
  OptimizerStep optimizer;
};

class TrainStep;

// A step that has been issued: its numbers are on their way to the host. Where it is not made (OptimizerStep), the
// device has left the model and the optimizer as they were.
class PendingStep {
 public:
  // Waits until the device has come to the end of the step's gradients. The step that the result was of must outlive
  // this. bad_parameter is known only while no later step has begun.
  StepResult read() const;

 private:
  friend class TrainStep;
  PendingStep(const TrainStep& step, std::shared_ptr<StepStatistics> statistics, double loss_scale, double loss_limit)
      : step_(&step), statistics_(std::move(statistics)), loss_scale_(loss_scale), loss_limit_(loss_limit) {}

  const TrainStep* step_;
  std::shared_ptr<StepStatistics> statistics_;
  double loss_scale_, loss_limit_;
};

// What stands between a step's batches and its update.
struct StepGuards {
  // A step is made only if its first loss is not above it, nor NaN; infinity: nothing is asked of the loss.
  double loss_limit = std::numeric_limits<double>::infinity();
  // Runs the pass it is given: forward and backward of the whole step, which returns what this rank has to tell of its
  // losses (StepStatistics::local). It may run it again, from the same state. Empty: once.
  std::function<void(const std::function<at::Tensor()>& pass)> run_passes = {};
};

class TrainStep {
 public:
  // All outlive it.
  TrainStep(PipelinedModel& model, const Task& task, DataParallel& data, Optimizer& optimizer, const Groups& groups,
            at::Device device);

  // batches  this rank's microbatches, in order; whole rows, of which context-parallel ranks take their parts
  // loss_scale  multiplies the objective; the optimizer divides the gradient by it. Reported losses are without it.
  // vote  asked once, when the gradients are there: whether this rank wants to stop (StepStatistics::vote)
  PendingStep run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale = 1.0,
                  const std::function<int()>& vote = {}, const StepGuards& guards = {});

  // Forward and backward only: complete gradients of the batches, times loss_scale, are in the buffers afterwards.
  StepResult compute_gradients(const std::vector<Batch>& batches, double loss_scale = 1.0);
  // What follows the optimizer's update in run(), where the update is made by the caller: the model moves what it moves
  // by the observations of the last compute_gradients(), if the optimizer's last step is made.
  void after_update();

 private:
  friend class PendingStep;
  void accumulate(const std::vector<Batch>& batches, double loss_scale);
  static StepResult result_of(StepStatistics& statistics);

  PipelinedModel& model_;
  const Task& task_;
  DataParallel& data_;
  Optimizer& optimizer_;
  const Groups& groups_;
  at::Device device_;
  std::optional<c10::Stream> copies_;           // that inputs come on; nothing on a CPU
  std::shared_ptr<StepStatistics> statistics_;  // of the last step
};

// What the task measures of this rank's microbatches, without gradients; the same on all ranks of the pipeline.
// token_losses, when given, receives each microbatch's (b, s) losses, on the CPU; whole rows, like batches.
struct EvaluationSums {
  std::vector<LossSum> losses;  // in the order of Task::evaluated_names()

  void add(const EvaluationSums& more);
  double loss() const { return losses.at(0).mean(); }
};
EvaluationSums evaluate_batches(PipelinedModel& model, const Task& task, const std::vector<Batch>& batches,
                                const Groups& groups, at::Device device,
                                std::vector<at::Tensor>* token_losses = nullptr);
// The sums over all ranks that saw other data.
EvaluationSums sum_over_data(EvaluationSums sums, const Groups& groups);

}  // namespace megalith

// One optimizer step: forward and backward of every microbatch, reduction, clipping, update.
//
// The objective is the sum of a task's losses over all microbatches and ranks, each divided by its weight in the whole
// global batch, which is counted before the first forward pass. So a rank with fewer valid tokens weighs less, and
// every layout and every micro_batch_size computes the same number.
//
// The ranks exchange twice: the weights, before anything is computed, and everything else (train/step_statistics.h)
// once the gradients are complete.
#pragma once

#include <cstdint>
#include <functional>
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
};

struct StepResult {
  std::vector<NamedLoss> losses;  // averaged over the global batch, the same on all ranks
  bool is_loss_finite = true;
  std::vector<ObservedValues> observations;  // of the global batch, the same on all ranks
  int vote = 0;                              // the highest that a rank gave
  OptimizerStep optimizer;
};

class TrainStep {
 public:
  // All outlive it.
  TrainStep(PipelinedModel& model, const Task& task, DataParallel& data, Optimizer& optimizer, const Groups& groups,
            at::Device device);

  // batches  this rank's microbatches, in order; whole rows, of which context-parallel ranks take their parts
  // loss_scale  multiplies the objective; the optimizer divides the gradient by it. Reported losses are without it.
  // vote  asked once, when the gradients are there: whether this rank wants to stop (StepStatistics::vote)
  StepResult run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale = 1.0,
                 const std::function<int()>& vote = {});

  // Forward and backward only: complete gradients of the batches, times loss_scale, are in the buffers afterwards.
  StepResult compute_gradients(const std::vector<Batch>& batches, double loss_scale = 1.0);
  // What follows the optimizer's update in run(), where the update is made by the caller: the model moves what it moves
  // by the observations of the last compute_gradients().
  void after_update();

 private:
  void accumulate(const std::vector<Batch>& batches, double loss_scale);
  StepResult result_of(const StepStatistics& statistics) const;

  PipelinedModel& model_;
  const Task& task_;
  DataParallel& data_;
  Optimizer& optimizer_;
  const Groups& groups_;
  at::Device device_;
  std::unique_ptr<StepStatistics> statistics_;  // of the last step
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

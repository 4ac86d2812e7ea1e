// One optimizer step: forward and backward of every microbatch, reduction, clipping, update.
//
// The objective is the sum of token losses over all microbatches and ranks, divided by the number of valid tokens of
// the whole global batch, which is counted before the first forward pass. So a rank with fewer valid tokens weighs
// less, and every layout and every micro_batch_size computes the same number.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "data/batch.h"
#include "metrics/expert_load.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "train/pipelined_model.h"

namespace megalith {

// A batch of this rank, or under context parallelism its part, as the model takes it, on the model's device.
ModelInput make_model_input(const Batch& batch, at::Device device, const ObjectiveScales& scales);

struct NamedLoss {
  std::string name;
  double value;
};

struct StepResult {
  std::vector<NamedLoss> losses;  // averaged over the global batch, the same on all ranks
  double valid_tokens = 0;        // of the global batch
  bool is_loss_finite = true;
  std::vector<ExpertLoad> expert_loads;  // of the global batch, by layer, the same on all ranks
  OptimizerStep optimizer;
};

class TrainStep {
 public:
  // All outlive it.
  TrainStep(PipelinedModel& model, DataParallel& data, Optimizer& optimizer, const Groups& groups, at::Device device);

  // batches  this rank's microbatches, in order; whole rows, of which context-parallel ranks take their parts
  // loss_scale  multiplies the objective; the optimizer divides the gradient by it. Reported losses are without it.
  StepResult run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale = 1.0);

  // Forward and backward only: complete gradients of the batches, times loss_scale, are in the buffers afterwards.
  StepResult compute_gradients(const std::vector<Batch>& batches, double loss_scale = 1.0);
  // What follows the optimizer's update in run(): biases of experts move by the loads of the step.
  void update_expert_biases(const std::vector<ExpertLoad>& loads);

 private:
  std::vector<ExpertLoad> sum_expert_loads(const ExpertRecords& records) const;

  PipelinedModel& model_;
  DataParallel& data_;
  Optimizer& optimizer_;
  const Groups& groups_;
  at::Device device_;
};

// Loss of this rank's microbatches without gradients: sums over their valid tokens, the same on all ranks of the
// pipeline. token_losses, when given, receives each microbatch's (b, s) losses, on the CPU; whole rows, like batches.
struct EvaluationSums {
  double loss_sum = 0, tokens = 0;
  double loss() const { return loss_sum / (tokens > 0 ? tokens : 1.0); }
};
EvaluationSums evaluate_batches(PipelinedModel& model, const std::vector<Batch>& batches, const Groups& groups,
                                at::Device device, std::vector<at::Tensor>* token_losses = nullptr);
// The sums over all ranks that saw other data.
EvaluationSums sum_over_data(EvaluationSums sums, const Groups& groups);

}  // namespace megalith

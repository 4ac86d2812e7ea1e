// One optimizer step: forward and backward of every microbatch, reduction, clipping, update.
//
// The objective is the sum of token losses over all microbatches and ranks, divided by the number of valid tokens of
// the whole global batch, which is counted before the first forward pass. So a rank with fewer valid tokens weighs
// less, and every layout and every micro_batch_size computes the same number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "data/batch.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"

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
  OptimizerStep optimizer;
};

class TrainStep {
 public:
  TrainStep(Model& model, DataParallel& data, Optimizer& optimizer, const Groups& groups, at::Device device);

  // batches  this rank's microbatches, in order; whole rows, of which context-parallel ranks take their parts
  // loss_scale  multiplies the objective; the optimizer divides the gradient by it. Reported losses are without it.
  StepResult run(const std::vector<Batch>& batches, double lr, double weight_decay, double loss_scale = 1.0);

  // Forward and backward only: complete gradients of the batches, times loss_scale, are in the buffers afterwards.
  StepResult compute_gradients(const std::vector<Batch>& batches, double loss_scale = 1.0);

 private:
  Model& model_;
  DataParallel& data_;
  Optimizer& optimizer_;
  const Groups& groups_;
  at::Device device_;
};

// Loss of the batches without gradients, averaged over all their valid tokens on all ranks.
// batch  as make_model_input() takes it: under context parallelism the part that shard_batch() gives
// token_losses, when given, receives each batch's (b, s) losses.
struct EvaluationSums {
  double loss_sum = 0, tokens = 0;
};
EvaluationSums evaluate_batch(Model& model, const Batch& batch, at::Device device, at::Tensor* token_losses = nullptr);

}  // namespace megalith

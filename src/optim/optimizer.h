// What every step does around the update rules (update_rule.h): the global gradient norm, clipping, and the decision,
// taken by all ranks together, whether the step may be made at all; fp32 master weights; state by name; publishing.
//
// State is named tensors, one set a part: "master" (only where the model's dtype is not already the master's), then
// what the part's rule keeps ("exp_avg", "exp_avg_sq", "momentum_buffer"). Checkpoints see them through the parameter's
// Placement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "ops/kernels.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"
#include "parallel/data_parallel.h"

namespace megalith {

// One tensor of optimizer state, shaped as the part that it belongs to.
struct OptimizerTensor {
  std::string key;  // "master", or one that the part's rule names
  const OwnedPart* part;
  at::Tensor tensor;
};

struct OptimizerStep {
  double grad_norm = 0;       // before clipping; 0 when clip_grad is 0 and the norm was not asked for
  double num_zeros = 0;       // elements of the gradient that are exactly zero; with log_num_zeros_in_grad
  bool was_skipped = false;   // the gradient was not finite
  int first_bad_rank = -1;    // world rank that held a non-finite gradient, when skipped
  std::string bad_parameter;  // its first parameter with one, known on that rank
};

class Optimizer {
 public:
  // Updates the parts of data; it and groups outlive the optimizer.
  Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels);

  // What this rank adds to a step's numbers: (2) float64 on the device of the gradients, their squared norm and, with
  // log_num_zeros_in_grad, how many of their elements are zero. Gradients must be complete (DataParallel::finish_step).
  at::Tensor local_numbers() const;
  // numbers: local_numbers() of all ranks summed, on the host; the same on all ranks. loss_scale divides the gradients.
  // Publishes what it changed.
  OptimizerStep step(double lr, double weight_decay, double loss_scale, const at::Tensor& numbers);
  // The same with an exchange of its own.
  OptimizerStep step(double lr, double weight_decay, double loss_scale = 1.0);

  // Master weights from the parts of the model, after those were loaded without optimizer state.
  void reset_masters();

  const std::vector<OptimizerTensor>& state() const { return state_; }
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }
  int64_t num_bytes() const;
  // Which rules move how many of this rank's parts: "Muon 15, AdamW 8"; one rule: "AdamW 23".
  std::string rules_text() const;

 private:
  UpdateSlot make_slot(const OwnedPart& part, const UpdateRule& rule);
  std::vector<at::Tensor> counted_gradients() const;
  void find_bad_gradient(OptimizerStep& result) const;

  DataParallel& data_;
  const Groups& groups_;
  OptimizerOptions options_;
  Kernels kernels_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<std::vector<UpdateSlot>> slots_;  // of each rule, in the order of DataParallel::parts()
  std::vector<OptimizerTensor> state_;
  int64_t num_steps_ = 0;
};

}  // namespace megalith

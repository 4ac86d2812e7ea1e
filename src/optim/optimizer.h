// AdamW with fp32 master weights, and what a step does around it: the global gradient norm, clipping, and the decision,
// taken by all ranks together, whether the step may be made at all.
//
// State is named tensors, one set a parameter: "master" (only where the model's dtype is not already the master's),
// "exp_avg", "exp_avg_sq". Checkpoints see them through the parameter's Placement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "config/option.h"
#include "core/error.h"
#include "ops/kernels.h"
#include "parallel/data_parallel.h"

namespace megalith {

enum class MomentDtype { kFp32, kBf16 };

struct OptimizerOptions {
  std::string optimizer = "adam";
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double clip_grad = 1.0;
  bool check_for_nan_in_loss_and_grad = true;
  bool log_num_zeros_in_grad = false;
  bool use_precision_aware_optimizer = false;
  MomentDtype exp_avg_dtype = MomentDtype::kFp32, exp_avg_sq_dtype = MomentDtype::kFp32;

  void visit(OptionVisitor& v);
};

// The rules between them; empty when all hold.
std::vector<UserError> check_optimizer_options(const OptimizerOptions& options);

// One tensor of optimizer state, shaped as the part that it belongs to.
struct OptimizerTensor {
  std::string key;  // "master", "exp_avg", "exp_avg_sq"
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

  // Gradients must be complete (DataParallel::finish_step). loss_scale divides them. Publishes what it changed.
  OptimizerStep step(double lr, double weight_decay, double loss_scale = 1.0);

  // Master weights from the parts of the model, after those were loaded without optimizer state.
  void reset_masters();

  const std::vector<OptimizerTensor>& state() const { return state_; }
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }
  int64_t num_bytes() const;

 private:
  struct Slot {
    const OwnedPart* part;
    at::Tensor master, exp_avg, exp_avg_sq;
    bool has_own_master;  // false: the model's tensor is the master
  };
  std::string find_bad_parameter() const;

  DataParallel& data_;
  const Groups& groups_;
  OptimizerOptions options_;
  Kernels kernels_;
  std::vector<Slot> slots_;
  std::vector<OptimizerTensor> state_;
  int64_t num_steps_ = 0;
};

}  // namespace megalith

// What every step does around the update rules (update_rule.h): the global gradient norm, clipping, and the decision,
// taken by all ranks together, whether the step may be made at all; fp32 master weights; state by name; publishing.
//
// Norm, clipping and decision stay on the device: the host issues the update without knowing them, and learns them from
// read() when the numbers have come, which may be a step later. A step whose gradient is not finite, or larger than
// grad_norm_skip_threshold, changes nothing.
//
// State is named tensors, one set a part: "master" (only where the model's dtype is not already the master's, and where
// master_weights asks for one), then what the part's rule keeps ("exp_avg", "exp_avg_sq", "momentum_buffer").
// Checkpoints see them through the parameter's Placement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "ops/kernels.h"
#include "optim/host_update.h"
#include "optim/optimizer_options.h"
#include "optim/stored_form.h"
#include "optim/update_rule.h"
#include "parallel/data_parallel.h"

namespace megalith {

// One tensor of optimizer state, shaped as the part that it belongs to.
struct OptimizerTensor {
  std::string key;  // "master", or one that the part's rule names
  const OwnedPart* part;
  at::Tensor tensor;
  std::optional<StoredForm> form = std::nullopt;  // what checkpoints hold, where that is not the tensor as it is
  bool is_on_host = false;                        // beside a device that holds the part (optimizer_cpu_offload)
};

// Why a step is not made; the first that holds.
enum class SkipReason {
  kNone,
  kNotFinite,  // the gradient
  kLargeNorm,  // grad_norm_skip_threshold
  kNotAllowed  // by the caller
};

struct OptimizerStep {
  double grad_norm = 0;       // before clipping; 0 when clip_grad is 0 and the norm was not asked for
  double num_zeros = 0;       // elements of the gradient that are exactly zero; with log_num_zeros_in_grad
  SkipReason skipped = SkipReason::kNone;
  int first_bad_rank = -1;    // world rank that held a non-finite gradient, when that is why
  std::string bad_parameter;  // its first parameter with one, known on that rank while the gradients are there

  bool was_skipped() const { return skipped != SkipReason::kNone; }
  bool is_finite() const { return skipped != SkipReason::kNotFinite; }
};

class Optimizer {
 public:
  // Updates the parts of data; it and groups outlive the optimizer.
  Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels);

  // What this rank adds to a step's numbers: (2 + ranks) float64 on the device of the gradients: their squared norm;
  // with log_num_zeros_in_grad, how many of their elements are zero; and 1 in the place of this rank where the norm is
  // not finite. Gradients must be complete (DataParallel::finish_step).
  at::Tensor local_numbers() const;
  // Issues the update, and publishes what it changes. numbers: local_numbers() of all ranks summed, the same on all
  // ranks. Reads them only where they are on the CPU. loss_scale divides the gradients. is_allowed: 0-d bool beside
  // the numbers: whether the caller lets the step be made; undefined: it does.
  void step(double lr, double weight_decay, double loss_scale, const at::Tensor& numbers,
            const at::Tensor& is_allowed = {});
  // Whether the last step is made: 0-d bool; undefined where the host knew that it is.
  const at::Tensor& is_made() const { return is_made_; }
  // What a step's numbers, which are on the host now, tell of it. has_gradients: those of this step are still there.
  // is_allowed: as the step had it.
  OptimizerStep read(const at::Tensor& numbers, double loss_scale, bool has_gradients, bool is_allowed = true) const;
  // All of it, with an exchange of its own.
  OptimizerStep step(double lr, double weight_decay, double loss_scale = 1.0);

  // Master weights from the parts of the model, after those were loaded without optimizer state.
  void reset_masters();

  const std::vector<OptimizerTensor>& state() const { return state_; }
  // Steps that were made. Waits for the device, which counts them.
  int64_t num_steps() const;
  void set_num_steps(int64_t steps);
  int64_t num_bytes() const;
  // What of it lies in host memory beside a device, and the buffers through which gradients and weights travel.
  int64_t host_bytes() const;
  // Which rules move how many of this rank's parts: "Muon 15, AdamW 8"; one rule: "AdamW 23".
  std::string rules_text() const;
  // The L2 norm of all parameters that the rules move, of the masters where there are any. Collective over the world.
  double params_norm() const;

 private:
  UpdateSlot make_slot(const OwnedPart& part, const UpdateRule& rule, bool is_on_host);
  std::vector<bool> parts_on_host() const;
  // Whether masters and states are moved by the CPU, which then must know a step's numbers: all, or those of host_.
  bool is_moved_by_host() const { return device_.is_cpu() || host_ != nullptr; }
  template <typename Visit>
  void for_each_slot(const Visit& visit) const;
  std::vector<at::Tensor> counted_gradients() const;
  std::string find_bad_parameter() const;

  DataParallel& data_;
  const Groups& groups_;
  OptimizerOptions options_;
  Kernels kernels_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<std::vector<UpdateSlot>> slots_;  // of each rule, in the order of DataParallel::parts()
  std::vector<OptimizerTensor> state_;
  at::Device device_;                 // of the gradients
  std::unique_ptr<HostUpdate> host_;  // the parts whose state lies in host memory; null: none
  at::Tensor num_steps_;              // 0-d fp64, on the CPU where the CPU moves anything
  at::Tensor is_made_;
};

}  // namespace megalith

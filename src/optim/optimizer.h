// Everything around the update rules (update_rule.h): gradient norm, clipping, the joint decision to make a step, fp32
// masters, named state, publishing.
//
// Norm, clipping and decision stay on the device; the host issues updates without them and may read() them a step
// later. A step with a non-finite gradient, or a norm above grad_norm_skip_threshold, changes nothing.
//
// State is named tensors: "master" (for a narrower model dtype, unless master_weights says otherwise) and the rule's
// ("exp_avg", "exp_avg_sq", "momentum_buffer"), in checkpoints by Placement: the parameter's for elements, their own
// for values of rows or columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "ops/kernels.h"
#include "optim/host_update.h"
#include "optim/learning_rate.h"
#include "optim/optimizer_options.h"
#include "optim/stored_form.h"
#include "optim/update_rule.h"
#include "parallel/data_parallel.h"

namespace megalith {

// A state tensor: of the part's shape, or whole.
struct OptimizerTensor {
  std::string key;  // "master" or the rule's
  const OwnedPart* part;
  at::Tensor tensor;
  std::optional<StoredForm> form = std::nullopt;  // checkpoint form, if different
  bool is_on_host = false;                        // while the part is on a device (optimizer_cpu_offload)
  const Placement* whole = nullptr;               // of a state that is not divided with the part

  const Placement& placement() const { return whole ? *whole : part->parameter->placement(); }
  std::optional<FlatRange> range() const { return whole ? std::nullopt : part->range; }
  AxisSet replica_axes() const { return whole ? whole->replica_axes : part->replica_axes; }
};

// The first reason to skip a step.
enum class SkipReason {
  kNone,
  kNotFinite,
  kLargeNorm,  // grad_norm_skip_threshold
  kNotAllowed  // by the caller
};

struct OptimizerStep {
  double grad_norm = 0;       // before clipping; 0 if neither clip_grad nor logging needs it
  double num_zeros = 0;       // in the gradient, with log_num_zeros_in_grad
  double num_sanitized = 0;   // elements of it that were not finite, with sft_sanitize_nan_grads
  SkipReason skipped = SkipReason::kNone;
  int first_bad_rank = -1;    // world rank with a non-finite gradient, if that is the reason
  std::string bad_parameter;  // its first such parameter, known on that rank while gradients exist

  bool was_skipped() const { return skipped != SkipReason::kNone; }
  bool is_finite() const { return skipped != SkipReason::kNotFinite; }
};

class Optimizer {
 public:
  // data and groups outlive the optimizer.
  Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels);

  // In a run's first `steps` these are not updated and not in the norm; their first update is a rule's first. For rules
  // of elements.
  void let_rest(std::set<const Parameter*> parameters, int64_t steps);
  // A step's place in the run, from 1; before local_numbers().
  void set_iteration(int64_t iteration) { iteration_ = iteration; }

  // This rank's addends to a step's numbers, (3 + ranks) float64 on the gradients' device: squared norm; zeros, with
  // log_num_zeros_in_grad; elements set to zero, with sft_sanitize_nan_grads; 1 at its own place if the norm is not
  // finite. After DataParallel::finish_step().
  at::Tensor local_numbers() const;
  // Issues the update and publishes it. numbers: local_numbers() summed over ranks. loss_scale divides the gradients.
  // is_allowed: 0-d bool on the same device; undefined: true. Reads these only on the CPU.
  void step(const LearningRates& rates, double weight_decay, double loss_scale, const at::Tensor& numbers,
            const at::Tensor& is_allowed = {});
  // 0-d bool: the last step is made; undefined if the host knew it is.
  const at::Tensor& is_made() const { return is_made_; }
  // A step's outcome from its numbers, on the host. has_gradients: this step's still exist. is_allowed: as in step().
  OptimizerStep read(const at::Tensor& numbers, double loss_scale, bool has_gradients, bool is_allowed = true) const;
  // All of the above, with its own exchange.
  OptimizerStep step(const LearningRates& rates, double weight_decay, double loss_scale = 1.0);

  // Sets masters from the model, after loading without optimizer state.
  void reset_masters();

  const std::vector<OptimizerTensor>& state() const { return state_; }
  // Steps made. Waits for the device's count.
  int64_t num_steps() const;
  void set_num_steps(int64_t steps);
  int64_t num_bytes() const;
  // In a device run: host state and transfer buffers.
  int64_t host_bytes() const;
  // Parts per rule on this rank: "Muon 15, AdamW 8"; "AdamW 23".
  std::string rules_text() const;
  // L2 norm of updated parameters, or their masters. Collective over the world.
  double params_norm() const;

 private:
  // This rank's parts, with empty ones for parameters that others hold and a rule sums over; in one order on all ranks
  // of a sharding group.
  std::vector<const OwnedPart*> parts_of_rules();
  UpdateSlot make_slot(const OwnedPart& part, const UpdateRule& rule, bool is_on_host);
  std::set<const OwnedPart*> parts_on_host() const;
  // True if the CPU updates masters and states, all or those of host_: it then needs the step's numbers.
  bool is_moved_by_host() const { return device_.is_cpu() || host_ != nullptr; }
  template <typename Visit>
  void for_each_slot(const Visit& visit) const;
  void update(size_t rule, std::span<UpdateSlot> slots, const UpdateStep& step);
  bool rests(const OwnedPart& part) const { return iteration_ <= rest_steps_ && resting_.contains(part.parameter); }
  std::vector<at::Tensor> counted_gradients() const;
  std::string find_bad_parameter() const;

  DataParallel& data_;
  const Groups& groups_;
  OptimizerOptions options_;
  Kernels kernels_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<std::vector<UpdateSlot>> slots_;  // by rule, in the order of DataParallel::parts()
  std::vector<OptimizerTensor> state_;
  std::deque<OwnedPart> empty_parts_;
  std::deque<Placement> whole_placements_;  // of states that are not divided
  at::Device device_;
  std::set<const Parameter*> resting_;
  int64_t rest_steps_ = 0, iteration_ = 1;
  std::unique_ptr<HostUpdate> host_;  // parts with state in host memory; null: none
  at::Tensor num_steps_;              // 0-d fp64, on the CPU if the CPU updates anything
  at::Tensor is_made_;
};

}  // namespace megalith

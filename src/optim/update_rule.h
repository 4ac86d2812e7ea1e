// An update rule: a step's effect on weights, given gradients (AdamW, SGD, Muon, …). A new one is a class and a line in
// update_rules.cc (docs/add_optimizer.md); the Optimizer does the rest.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/groups.h"
#include "parallel/data_parallel.h"

namespace megalith {

// A state has a value for each of these. Elements are divided over ranks with the parameter; of the others each rank
// with a share of the parameter has all (state_layout.h). Blocks: kBlockSize elements of a matrix, row by row.
enum class StateShape { kElements, kRows, kColumns, kMatrices, kBlocks };
inline constexpr int64_t kBlockSize = 256;

// A parameter's state tensor: its key in checkpoints, dtype and shape.
struct StateSpec {
  std::string key;  // letters, digits, '_'
  at::ScalarType dtype;
  StateShape shape = StateShape::kElements;
};

// A part as its rule sees it. Tensors have the part's extents, except states of another shape, and are contiguous.
struct UpdateSlot {
  const OwnedPart* part = nullptr;
  at::Tensor model;         // receives the rounded master; undefined if itself the master
  at::Tensor master;        // Parameter::wide_dtype(): fp32, or fp64 for an fp64 model
  at::Tensor grad;          // wide, or bf16
  at::Tensor remainder;     // int16, instead of a master (narrow_master.h); without either, only the model's weight
  std::vector<at::Tensor> state;    // in the order of UpdateRule::state()
  double lr = 0, weight_decay = 0;  // of this step, including the parameter's multipliers

  at::Tensor wide_grad() const { return grad.to(part->parameter->wide_dtype()); }
};

// A step's decisions: 0-d tensors on the slots' device, which rules use unread: the host need not wait.
struct UpdateStep {
  at::Tensor grad_scale;  // fp64: clipping factor / loss scale, not yet applied
  at::Tensor number;      // fp64: step number, counting made ones, from 1
  // bool: the step is made. Otherwise masters, state and models must not change, even for NaN gradients. Undefined if
  // known to be made, as on the CPU.
  at::Tensor is_made;

  // The tensor to update: itself if the step is certain, else a copy for settle().
  at::Tensor draft(const at::Tensor& kept) const;
  void settle(const at::Tensor& kept, const at::Tensor& draft) const;
};

class UpdateRule {
 public:
  // Inputs of an element's update: itself; sums or maxima over its canonical matrix (a rank then has a slot, perhaps
  // empty, for every parameter that others share); or the whole matrix (ZeRO-1 then cuts buckets only between
  // matrices).
  enum class Granularity { kElements, kSums, kMatrices };

  virtual ~UpdateRule() = default;

  virtual std::string_view name() const = 0;
  virtual Granularity granularity() const { return Granularity::kElements; }
  // True if it can update the parameter; the list's first such rule gets it.
  virtual bool takes(const Parameter& parameter) const = 0;
  // True if bf16 weights need no fp32 masters: master_weights then chooses.
  virtual bool takes_narrow_masters() const { return false; }
  // Begins as zeros.
  virtual std::vector<StateSpec> state(const Parameter& parameter) const = 0;
  // Called on every rank, once, before the first step: rules that communicate plan here. Both outlive the rule.
  virtual void prepare(const DataParallel& /*data*/, const Groups& /*groups*/) {}
  // Updates masters and state, and copies masters to `model` if defined.
  // slots  this rank's parts of the rule, in the order of DataParallel::parts(), then empty ones. Called even if none,
  //        as other ranks may communicate
  virtual void update(std::span<const UpdateSlot> slots, const UpdateStep& step) = 0;
};

}  // namespace megalith

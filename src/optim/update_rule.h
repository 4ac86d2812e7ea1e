// An update rule: what one step does to the weights, given their gradients. AdamW, SGD and Muon are rules; a new one is
// a class here and a line in update_rules.cc (docs/add_optimizer.md).
//
// The Optimizer does what all rules share: the gradient's norm, clipping, skipped steps, master weights, state by name,
// rounding the masters into the model, and publishing. A rule only says which state it keeps and how a step moves the
// masters.
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

// One tensor of state a part: its key in checkpoints, and the dtype that it is kept in.
struct StateSpec {
  std::string key;  // letters, digits, '_'
  at::ScalarType dtype;
};

// A part as its rule sees it. All tensors have the part's extents and are contiguous.
struct UpdateSlot {
  const OwnedPart* part = nullptr;
  at::Tensor model;         // where the rounded master goes; undefined when the model's own tensor is the master
  at::Tensor master, grad;  // the gradient's dtype: fp32, or fp64 for an fp64 model
  at::Tensor remainder;     // int16: in the place of a master (narrow_master.h); neither: the model's weight is all
  std::vector<at::Tensor> state;    // in the order of UpdateRule::state()
  double lr = 0, weight_decay = 0;  // of this step, with the parameter's multipliers
};

// What is decided for a step: 0-d tensors on the slots' device. A rule computes with them and reads none, so that the
// host need not wait for the device.
struct UpdateStep {
  at::Tensor grad_scale;  // fp64: the clipping factor over the loss scale. The gradients are still without.
  at::Tensor number;      // fp64: of the step, among those that are made, from 1
  // bool: whether the step is made. Where it is not, masters, state and models stay as they are, although gradients may
  // be NaN. Undefined where the host knows that it is made, as on the CPU.
  at::Tensor is_made;

  // A tensor to be moved: itself where the step is certain, or else a copy of it, which settle() takes over.
  at::Tensor draft(const at::Tensor& kept) const;
  void settle(const at::Tensor& kept, const at::Tensor& draft) const;
};

class UpdateRule {
 public:
  // What a rule must see at once to update an element: that element, or the whole canonical matrix that it lies in.
  // Where ranks divide the work (ZeRO-1), buckets are cut between the matrices of a rule that wants them whole.
  enum class Granularity { kElements, kMatrices };

  virtual ~UpdateRule() = default;

  virtual std::string_view name() const = 0;
  virtual Granularity granularity() const { return Granularity::kElements; }
  // Whether the rule can update a parameter. The first rule of a list that takes it gets it.
  virtual bool takes(const Parameter& parameter) const = 0;
  // Whether the rule can do without fp32 masters: slots of bf16 weights then have what master_weights says.
  virtual bool takes_narrow_masters() const { return false; }
  // State of a part whose gradient has this dtype. It starts as zeros.
  virtual std::vector<StateSpec> state(at::ScalarType grad_dtype) const = 0;
  // Called once, before the first step, on every rank: a rule that communicates plans here what it will exchange. Both
  // outlive the rule.
  virtual void prepare(const DataParallel& /*data*/, const Groups& /*groups*/) {}
  // Moves the masters, and the state, and copies the masters to `model` where there is one.
  // slots  this rank's parts that the rule took, in the order of DataParallel::parts(); may be empty, and is called all
  //        the same, because other ranks may want an answer
  virtual void update(std::span<const UpdateSlot> slots, const UpdateStep& step) = 0;
};

}  // namespace megalith

// Data parallelism as the step and the optimizer see it, whatever is replicated and whatever is sharded:
//
//   replicated   every rank holds parameters, gradients and optimizer state whole; gradients are all-reduced
//   ZeRO-1       parameters and gradients whole, each rank updates a run of every bucket: gradients are
//                reduce-scattered, updated parameters all-gathered (use_distributed_optimizer)
//   FSDP         each rank holds a run of every parameter and gathers a block's while it runs (use_torch_fsdp2)
//
// A step is: begin_step; for each microbatch begin_microbatch, forward, backward; finish_step; the optimizer updates
// parts(); publish.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "nn/block_runner.h"
#include "nn/parameter.h"

namespace megalith {

// What this rank updates of a parameter.
struct OwnedPart {
  Parameter* parameter = nullptr;
  // A range of the flattened local tensor; nothing: all of it. An empty range is not listed.
  std::optional<FlatRange> range;
  // They have the local shape without a range, range->size() elements with one. model has the parameter's dtype and no
  // autograd. Their storages stay for the life of the DataParallel. grad is complete between finish_step and
  // begin_step.
  at::Tensor model, grad;
  // Axes along which other ranks hold, and update, this very part.
  AxisSet replica_axes;
};

// Where the runs of a parameter lie whose update is divided over ranks: rank r of the group updates the elements
// [first + r * size, first + (r + 1) * size) of the flattened local tensor, as far as there are such.
struct ParameterRuns {
  Parameter* parameter = nullptr;
  Group* group = nullptr;
  int64_t first = 0, size = 0;

  FlatRange of(int rank) const;  // empty where the rank has none
};

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  virtual void begin_step() = 0;
  // Only the last microbatch's backward starts reductions that need all contributions.
  virtual void begin_microbatch(bool is_last) = 0;
  // Afterwards every part's grad is the sum over all ranks that saw other data or other tokens (the placement's
  // partial_axes), also of parameters that got no contribution.
  virtual void finish_step() = 0;
  // The model parts of all ranks were written (by the optimizer, a checkpoint, an import): whoever computes with them
  // gets them. Gathers may still be under way when it returns: wait_for_parameters() or the runner ends them.
  virtual void publish() = 0;
  virtual void wait_for_parameters() = 0;
  // Draws the initial values of all parameters, or of adapters only (then what is to be loaded into the others comes
  // next: they are void); each rank's are the same as if it held them whole.
  virtual void initialise(uint64_t seed, bool only_adapters = false) = 0;

  // In one order, the same on all ranks that share a sharding group.
  virtual const std::vector<OwnedPart>& parts() const = 0;
  // How the parts of all ranks lie, of every trainable parameter, those without a part on this rank included; in one
  // order, the same on all ranks that share a sharding group. Empty: parts are whole.
  virtual std::vector<ParameterRuns> runs() const { return {}; }
  // What this rank holds of every parameter, frozen ones included, without grad: what checkpoints and imports fill
  // (publish() follows) and what they save. In registration order. `model` of a packed one has only the shape.
  virtual const std::vector<OwnedPart>& model_parts() const = 0;
  // What the model's blocks must run through, also without gradients; null when nothing must.
  virtual BlockRunner* runner() = 0;

  // What is held between steps on this rank, in bytes.
  virtual int64_t parameter_bytes() const = 0;
  virtual int64_t gradient_bytes() const = 0;
  // What of it lies in host memory beside the device that computes, and what else is taken there for it.
  virtual int64_t host_bytes() const { return 0; }
};

// The parameters as they are, whole: model_parts() where nothing of them is sharded.
std::vector<OwnedPart> whole_parameters(const std::vector<Parameter*>& params);

// Sums the gradients that are partial over tp (norms and biases under sequence parallelism), several at a time, and
// then those of what several stages of the pipeline hold (a tied embedding) over these. Every DataParallel ends
// finish_step with it: sums over these ranks and over data commute, and a shard is smaller.
void sum_over_model_ranks(const std::vector<OwnedPart>& parts, const Groups& groups);

}  // namespace megalith

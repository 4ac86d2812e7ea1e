// Data parallelism as step and optimizer see it:
//
//   replicated   every rank holds parameters, gradients and optimizer state whole; gradients are all-reduced
//   ZeRO-1       parameters and gradients whole, each rank updates a run of every bucket: gradients are
//                reduce-scattered, updated parameters all-gathered (use_distributed_optimizer)
//   FSDP         each rank holds a run of every parameter and gathers a block's while it runs (use_torch_fsdp2)
//
// A step: begin_step; for each microbatch begin_microbatch, forward, backward; finish_step; the optimizer updates
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

struct OwnedPart {
  Parameter* parameter = nullptr;
  // In the flattened local tensor; unset: all of it. Empty ranges are not listed.
  std::optional<FlatRange> range;
  // Shaped like the local tensor, or (range->size()). model has the parameter's dtype and no autograd. Storages are
  // stable. grad is complete between finish_step and begin_step.
  at::Tensor model, grad;
  // Axes along which other ranks hold, and update, the same part.
  AxisSet replica_axes;
};

// Runs of a parameter: rank r of the group has elements [first + r * size, first + (r + 1) * size) of the flattened
// local tensor, clipped to it.
struct ParameterRuns {
  Parameter* parameter = nullptr;
  Group* group = nullptr;
  int64_t first = 0, size = 0;

  FlatRange of(int rank) const;  // may be empty
};

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  virtual void begin_step() = 0;
  // Only the last microbatch's backward starts reductions that need all contributions.
  virtual void begin_microbatch(bool is_last) = 0;
  // Sums every part's grad over all ranks with other data or tokens (the placement's partial_axes), even without
  // contributions here.
  virtual void finish_step() = 0;
  // Distributes model parts written by all ranks (optimizer, checkpoint, import). Gathers may be in flight on return:
  // wait_for_parameters() or the runner ends them.
  virtual void publish() = 0;
  virtual void wait_for_parameters() = 0;
  // Draws initial values of all parameters, or only adapters (the others are void until loaded), independent of
  // sharding.
  virtual void initialise(uint64_t seed, bool only_adapters = false) = 0;

  // In one order on all ranks of a sharding group.
  virtual const std::vector<OwnedPart>& parts() const = 0;
  // Runs of every trainable parameter, even without a part here, in the order of parts(). Empty: parts are whole.
  virtual std::vector<ParameterRuns> runs() const { return {}; }
  // This rank's share of every parameter, frozen ones included, without grad, in registration order, for checkpoints
  // and imports (publish() follows). A packed one's `model` has only the shape.
  virtual const std::vector<OwnedPart>& model_parts() const = 0;
  // Must run the model's blocks, even without gradients; may be null.
  virtual BlockRunner* runner() = 0;

  // Held by this rank between steps.
  virtual int64_t parameter_bytes() const = 0;
  virtual int64_t gradient_bytes() const = 0;
  // Host memory of a device run, buffers included.
  virtual int64_t host_bytes() const { return 0; }
};

// model_parts() without sharding.
std::vector<OwnedPart> whole_parameters(const std::vector<Parameter*>& params);

// Sums gradients partial over tp (norms and biases under sequence parallelism), batched, then those shared by pipeline
// stages (a tied embedding). Ends every finish_step: the sums commute with data parallelism's, and shards are smaller.
void sum_over_model_ranks(const std::vector<OwnedPart>& parts, const Groups& groups);

}  // namespace megalith

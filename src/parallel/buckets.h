// Buckets: how the trainable parameters of a chunk lie in contiguous buffers, and the reduction of their gradients.
//
// Parameters of one dtype whose gradients are summed over the same ranks share a buffer, last layers first, because
// backward reaches those first. A buffer is cut into buckets; a bucket is what one collective moves. Source:
// Megatron-LM megatron/core/distributed/param_and_grad_buffer.py.
//
// Where a bucket is divided into runs, one a rank, a run may begin and end anywhere, also within a parameter; or only
// between parameters, for an update rule that must see whole matrices:
//
//   anywhere           | w4 ........ | w3 ..... | w2 ...|.. w1 |      equal runs, padding only at the end
//                      |    run 0    |    run 1     |  run 2   |
//   between matrices   | w4 ........ | w3 ..... pad | w2 w1 .. |      equal runs, padding at the end of each
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "nn/parameter.h"

namespace megalith {

// ---- Layout: pure arithmetic ----

enum class BucketCut { kAnywhere, kBetweenMatrices };
using BucketCutFunction = std::function<BucketCut(const Parameter& parameter)>;

struct BucketMember {
  Parameter* parameter = nullptr;
  int64_t offset = 0;  // of its first element in the buffer
};

struct Bucket {
  size_t buffer = 0;  // index in BucketPlan::buffers
  FlatRange range;    // in the buffer, padding included
  std::vector<BucketMember> members;
  BucketCut cut = BucketCut::kAnywhere;  // what its runs keep to
};

struct BufferSpec {
  at::ScalarType dtype, grad_dtype;
  // Over which the gradients are summed, tp aside. What several stages of a pipeline hold is partial over pp too, so it
  // has a buffer of its own for each set of stages, and its runs are the same on all of them.
  AxisSet axes;
  std::vector<int> pipeline_ranks;       // Placement::pipeline_ranks
  BucketCut cut = BucketCut::kAnywhere;  // what its parameters ask for; a bucket of them may not have room for it
  int64_t size = 0;                      // elements, padding included
};

struct BucketPlan {
  std::vector<BufferSpec> buffers;
  std::vector<Bucket> buckets;  // in the order in which backward completes them; the same on all ranks of a stage
};

struct BucketRules {
  int64_t bucket_elements = 40'000'000;  // a bucket is closed once it holds this many
  int64_t alignment = 1;                 // every parameter begins at a multiple of this
  // Every bucket's size is a multiple of this, given the axes of its buffer; null: of one.
  std::function<int64_t(const AxisSet& axes)> bucket_multiple = nullptr;
  // Into how many equal runs a bucket is divided, given the axes of its buffer; null: one. Divides bucket_multiple.
  std::function<int64_t(const AxisSet& axes)> num_runs = nullptr;
  // Where the runs may be cut; null: anywhere. Parameters that differ in it have buffers of their own.
  BucketCutFunction cut = nullptr;
};

// Padding that a bucket may have between its runs, for each element: with more the bucket stays open, and takes further
// parameters until they fill the runs evenly. The last one, which has nothing left to take, is cut anywhere instead.
inline constexpr double kMostRunPadding = 1.0 / 8;

// params  in registration order; frozen ones have no place
BucketPlan plan_buckets(const std::vector<Parameter*>& params, const BucketRules& rules);

// The groups over which gradients with these axes are summed: all of it, or first within the ranks that share one copy
// of sharded state and then across the copies. InternalError for axes that no such group lies on.
struct ReductionGroups {
  Groups::Pointer whole, shard, replicate;
  std::optional<Axis> replicate_axis;  // of the group `replicate`, when that is more than one rank
};
ReductionGroups reduction_groups(const AxisSet& partial_axes, const Groups& groups);

// ---- Reduction ----

struct GradBufferOptions {
  int64_t bucket_elements = 40'000'000;
  bool overlap = true;          // launch from backward; otherwise all at the end
  bool reduce_in_bf16 = false;  // fp32 gradients travel in bf16: half the bytes, each summand rounded. Accumulation
                                // over microbatches stays in fp32.
};

// Owns the gradient buffers and sums them over ranks.
//
// Buckets are launched in one fixed order on every rank, each only after the one before, as soon as all of its
// parameters are complete; what is missing at the end of the step is flushed in that order, so a parameter without a
// contribution hangs nobody.
class GradReducer {
 public:
  enum class Form {
    kAllReduce,      // every rank gets the sum of every bucket
    kReduceScatter,  // rank r of n of the shard group gets the r-th n-th of every bucket, whose other parts are void
                     // afterwards; that run is then summed over the replicate group
  };

  // Attaches views of the buffers to the plan's parameters. Parameters and groups outlive it; the plan is copied.
  GradReducer(BucketPlan plan, const Groups& groups, Form form, const GradBufferOptions& options, at::Device device);
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;

  void begin_step();
  void begin_microbatch(bool is_last);
  // Zeroes what got no contribution, launches what is missing, waits for all.
  void finish_step();

  const BucketPlan& plan() const { return plan_; }
  const ReductionGroups& groups_of(const Bucket& bucket) const { return groups_[bucket.buffer]; }
  // What this rank gets of a bucket, in its buffer.
  FlatRange own_range(const Bucket& bucket) const;
  int64_t num_bytes() const;

 private:
  struct Reduction {
    at::Tensor sent, own;  // own lies in sent
    int64_t num_pending = 0;
    Work work;
  };
  void launch_complete_buckets();
  void launch(size_t index);

  const BucketPlan plan_;
  const Form form_;
  const GradBufferOptions options_;
  std::vector<ReductionGroups> groups_;  // of each buffer
  std::vector<at::Tensor> buffers_;
  std::vector<Reduction> reductions_;  // of each bucket
  size_t next_bucket_ = 0;
};

}  // namespace megalith

// Buckets: a chunk's trainable parameters in contiguous buffers, and the reduction of their gradients.
//
// Parameters of one dtype with gradients summed over the same ranks share a buffer, in backward's order, cut into
// buckets of one collective each. Source: Megatron-LM megatron/core/distributed/param_and_grad_buffer.py.
//
// A bucket has one run per rank, cut anywhere, or between parameters for rules that need whole matrices:
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
  int64_t offset = 0;  // in the buffer
};

struct Bucket {
  size_t buffer = 0;  // index in BucketPlan::buffers
  FlatRange range;    // in the buffer, padding included
  std::vector<BucketMember> members;
  BucketCut cut = BucketCut::kAnywhere;
};

struct BufferSpec {
  at::ScalarType dtype, grad_dtype;
  // Axes of the gradients' sum, except tp. Parameters on several pipeline stages are partial over pp too: each set of
  // stages has its own buffer, with equal runs on all of them.
  AxisSet axes;
  std::vector<int> pipeline_ranks;       // Placement::pipeline_ranks
  BucketCut cut = BucketCut::kAnywhere;  // requested; a bucket may lack room for it
  int64_t size = 0;                      // elements, padding included
};

struct BucketPlan {
  std::vector<BufferSpec> buffers;
  std::vector<Bucket> buckets;  // in backward's completion order; the same on all ranks of a stage
};

struct BucketRules {
  int64_t bucket_elements = 40'000'000;  // closes a bucket
  int64_t alignment = 1;                 // of parameters' offsets
  // Divides every bucket's size, by its buffer's axes; null: 1.
  std::function<int64_t(const AxisSet& axes)> bucket_multiple = nullptr;
  // Equal runs of a bucket, by its buffer's axes; null: 1. Divides bucket_multiple.
  std::function<int64_t(const AxisSet& axes)> num_runs = nullptr;
  // Allowed cuts of runs; null: anywhere. Parameters that differ have separate buffers.
  BucketCutFunction cut = nullptr;
};

// Maximum padding between runs; a bucket with more stays open for further parameters, and the last is cut anywhere.
inline constexpr double kMostRunPadding = 1.0 / 8;

// params  in registration order; frozen ones are left out
BucketPlan plan_buckets(const std::vector<Parameter*>& params, const BucketRules& rules);

// Groups for summing gradients over these axes: at once, or within one copy of sharded state, then across copies.
// InternalError if there is none.
struct ReductionGroups {
  Groups::Pointer whole, shard, replicate;
  std::optional<Axis> replicate_axis;  // of `replicate`, if more than one rank
};
ReductionGroups reduction_groups(const AxisSet& partial_axes, const Groups& groups);

// ---- Reduction ----

struct GradBufferOptions {
  int64_t bucket_elements = 40'000'000;
  bool overlap = true;          // start during backward; otherwise all at the end
  bool reduce_in_bf16 = false;  // fp32 gradients travel in bf16: half the bytes, each summand rounded. Accumulation
                                // over microbatches stays in fp32.
};

// Owns gradient buffers and sums them over ranks.
//
// Buckets start in one order on every rank, once complete; finish_step() flushes the rest in that order, so a missing
// contribution cannot hang a rank.
class GradReducer {
 public:
  enum class Form {
    kAllReduce,      // every rank gets all sums
    kReduceScatter,  // rank r of n of the shard group gets the r-th n-th of every bucket, then summed over the
                     // replicate group; other parts are void
  };

  // Gives the plan's parameters views of the buffers. Parameters and groups outlive it; the plan is copied.
  GradReducer(BucketPlan plan, const Groups& groups, Form form, const GradBufferOptions& options, at::Device device);
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;

  void begin_step();
  void begin_microbatch(bool is_last);
  // Zeroes gradients without contributions, starts missing buckets, waits for all.
  void finish_step();

  const BucketPlan& plan() const { return plan_; }
  const ReductionGroups& groups_of(const Bucket& bucket) const { return groups_[bucket.buffer]; }
  FlatRange own_range(const Bucket& bucket) const;
  int64_t num_bytes() const;

 private:
  struct Reduction {
    at::Tensor sent, own;  // own is a view of sent
    int64_t num_pending = 0;
    Work work;
  };
  void launch_complete_buckets();
  void launch(size_t index);

  const BucketPlan plan_;
  const Form form_;
  const GradBufferOptions options_;
  std::vector<ReductionGroups> groups_;  // by buffer
  std::vector<at::Tensor> buffers_;
  std::vector<Reduction> reductions_;  // by bucket
  size_t next_bucket_ = 0;
};

}  // namespace megalith

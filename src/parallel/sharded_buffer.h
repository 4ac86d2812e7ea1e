// The distributed optimizer (ZeRO-1): every rank holds parameters and gradients whole, but updates, and keeps optimizer
// state for, a part of them only. Source: Rajbhandari et al. 2020, arXiv:1910.02054; Megatron-LM
// megatron/core/optimizer/distrib_optimizer.py.
//
//   bucket   | layer 3 ............ | layer 2 ........ | pad |      parameter and gradient buffer, the same offsets
//   run      |  rank 0  |  rank 1  |  rank 2  |  rank 3      |      cut anywhere, or between matrices (buckets.h)
//
// Gradients are reduce-scattered, bucket by bucket: a rank gets the sum of its run of each. It updates the parameters
// in that run, in place, and an all-gather of each bucket's parameter buffer, in place too, gives them to the others.
// With dp_replicate above one the runs are those of the ranks of one copy (dp_shard and cp), and gradients are summed
// over the copies afterwards.
//
// Bytes. With n ranks in the shard group, the trainable parameters of a dtype, last first, each begin at a multiple of
// 64 elements; a bucket ends with the parameter that brings it to bucket_elements, and is padded to a multiple of
// 64 n (and of bucket_multiple). Both buffers have the padded size: parameter_bytes() = size × bytes of the dtype (and
// the frozen parameters' own), gradient_bytes() = size × 4 (8 for fp64). Padding has no optimizer state: the state of
// all n ranks together is that of the local elements, and no rank has more than size / n of them. Parameters that are
// cut between matrices have buckets of their own, padded by kMostRunPadding at most beside that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/groups.h"
#include "nn/module.h"
#include "parallel/buckets.h"
#include "parallel/data_parallel.h"

namespace megalith {

struct ShardedBufferOptions {
  GradBufferOptions gradients;
  // Updated parameters are gathered while the next forward runs; otherwise before publish() returns.
  bool overlap_gather = false;
  // A bucket's size is a multiple of this, beside kAlignment n.
  int64_t bucket_multiple = 1;
  BucketCutFunction cut = nullptr;  // null: anywhere
};

class ShardedGradBuffer : public DataParallel {
 public:
  // Elements: of the beginning of a parameter and of a run.
  static constexpr int64_t kAlignment = 64;

  // params  in registration order; values of the trainable ones move into the parameter buffer, contents kept. They and
  // groups outlive it.
  ShardedGradBuffer(const std::vector<Parameter*>& params, const Groups& groups, const ShardedBufferOptions& options);
  ~ShardedGradBuffer() override;

  void begin_step() override { reducer_->begin_step(); }
  void begin_microbatch(bool is_last) override { reducer_->begin_microbatch(is_last); }
  void finish_step() override;
  // Gathers in the order of need: first what forward reads first.
  void publish() override;
  void wait_for_parameters() override;
  void initialise(uint64_t seed, bool only_adapters) override;

  const std::vector<OwnedPart>& parts() const override { return parts_; }
  std::vector<ParameterRuns> runs() const override { return runs_; }
  const std::vector<OwnedPart>& model_parts() const override { return model_parts_; }
  // Waits for the parameters of a block before it runs; null without overlap_gather.
  BlockRunner* runner() override { return runner_.get(); }
  int64_t parameter_bytes() const override;
  int64_t gradient_bytes() const override { return reducer_->num_bytes(); }

 private:
  class WaitingRunner;
  void wait_for_bucket(size_t index);

  const std::vector<Parameter*> params_;
  const Groups& groups_;
  const ShardedBufferOptions options_;
  std::vector<at::Tensor> parameter_buffers_;
  std::unique_ptr<GradReducer> reducer_;
  std::vector<OwnedPart> parts_, model_parts_;  // in registration order
  std::vector<ParameterRuns> runs_;
  std::unordered_map<const Parameter*, size_t> bucket_of_;
  std::vector<std::optional<Work>> gathers_;  // of each bucket, while it is under way
  int64_t num_gathering_ = 0;
  std::unique_ptr<BlockRunner> runner_;
};

}  // namespace megalith

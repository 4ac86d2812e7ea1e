// The distributed optimizer (ZeRO-1): parameters and gradients whole on every rank, updates and optimizer state
// divided. Source: Rajbhandari et al. 2020, arXiv:1910.02054; Megatron-LM megatron/core/optimizer/distrib_optimizer.py.
//
//   bucket   | layer 3 ............ | layer 2 ........ | pad |      parameter and gradient buffer, the same offsets
//   run      |  rank 0  |  rank 1  |  rank 2  |  rank 3      |      cut anywhere, or between matrices (buckets.h)
//
// Gradients are reduce-scattered by bucket, each rank updates its runs, all-gathers distribute the result, all in
// place. With dp_replicate above one, runs are divided within a copy (dp_shard and cp), and gradients also summed over
// copies.
//
// Bytes: with n ranks in the shard group, a dtype's trainable parameters, last first, begin at multiples of 64
// elements; a bucket ends once it has bucket_elements, padded to a multiple of 64 n (and of bucket_multiple).
// parameter_bytes() = padded size × bytes of the dtype (plus frozen parameters), gradient_bytes() = padded size × 4 (8
// for fp64). State excludes padding: at most size / n elements per rank. Buckets cut between matrices have at most
// kMostRunPadding more.
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
  // Gather updated parameters during the next forward; otherwise before publish() returns.
  bool overlap_gather = false;
  // Bucket sizes are multiples of this and of kAlignment n.
  int64_t bucket_multiple = 1;
  BucketCutFunction cut = nullptr;  // null: anywhere
};

class ShardedGradBuffer : public DataParallel {
 public:
  // In elements, of parameters and runs.
  static constexpr int64_t kAlignment = 64;

  // params  in registration order; trainable values move to the parameter buffer. They and groups outlive it.
  ShardedGradBuffer(const std::vector<Parameter*>& params, const Groups& groups, const ShardedBufferOptions& options);
  ~ShardedGradBuffer() override;

  void begin_step() override { reducer_->begin_step(); }
  void begin_microbatch(bool is_last) override { reducer_->begin_microbatch(is_last); }
  void finish_step() override;
  // Gathers in forward's order of use.
  void publish() override;
  void wait_for_parameters() override;
  void initialise(uint64_t seed, bool only_adapters) override;

  const std::vector<OwnedPart>& parts() const override { return parts_; }
  std::vector<ParameterRuns> runs() const override { return runs_; }
  const std::vector<OwnedPart>& model_parts() const override { return model_parts_; }
  // Waits for a block's parameters before it runs; null without overlap_gather.
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
  std::vector<OwnedPart> parts_, model_parts_;
  std::vector<ParameterRuns> runs_;
  std::unordered_map<const Parameter*, size_t> bucket_of_;
  std::vector<std::optional<Work>> gathers_;  // by bucket, while in flight
  int64_t num_gathering_ = 0;
  std::unique_ptr<BlockRunner> runner_;
};

}  // namespace megalith

// How data-parallel ranks share a step's work, in Megatron-LM's names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "core/error.h"
#include "parallel/buckets.h"
#include "parallel/data_parallel.h"

namespace megalith {

class OptionSet;
class OptionVisitor;

enum class GradDtype { kFp32, kBf16 };

// Megatron-LM's words.
enum class ShardingStrategy { kNothing, kOptimizer, kOptimizerAndGradients, kAll };

struct DataParallelOptions {
  bool use_distributed_optimizer = false;
  bool use_torch_fsdp2 = false, torch_fsdp2_reshard_after_forward = true;
  bool fsdp_cpu_offload = false;
  bool overlap_grad_reduce = false, overlap_param_gather = false;
  GradDtype main_grads_dtype = GradDtype::kFp32;
  bool grad_reduce_in_bf16 = false;
  bool use_megatron_fsdp = false;  // resolve_fsdp() turns it, with the strategy, into the options above
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kNothing;
  std::optional<int64_t> ddp_bucket_size, ddp_num_buckets;
  bool ddp_pad_buckets_for_high_nccl_busbw = false;

  void visit(OptionVisitor& v);
};

// Replaces use_megatron_fsdp by the equivalent options, with notes. Options that shard or overlap the optimizer, which
// FSDP does itself, are switched off with a note if a default or preset set them, and errors if the user did, except
// with Megatron-LM's FSDP, which requires them.
std::vector<UserError> resolve_fsdp(DataParallelOptions& options, const OptionSet& set,
                                    std::vector<std::string>& notes);

// Broken rules between these options and parallel sizes; empty if none.
std::vector<UserError> check_data_parallel_options(const DataParallelOptions& options, const ParallelOptions& parallel);

// Size that closes a bucket, for num_elements trainable on this rank and dp_cp_size ranks that share the data.
int64_t bucket_elements(const DataParallelOptions& options, int64_t num_elements, int64_t dp_cp_size);

// Gives gradient buffers their dtype, before they are made.
void set_grad_dtype(const std::vector<Parameter*>& params, const DataParallelOptions& options);

// The configured data parallelism. params in registration order; they and groups outlive it.
// blocks  of the model, for use_torch_fsdp2
// device  for training, if params are on kMeta
// cut     allowed cuts of the distributed optimizer's buckets; null: anywhere
std::unique_ptr<DataParallel> make_data_parallel(const std::vector<Parameter*>& params, const Groups& groups,
                                                 const DataParallelOptions& options,
                                                 const std::vector<Block>& blocks = {},
                                                 std::optional<at::Device> device = std::nullopt,
                                                 const BucketCutFunction& cut = nullptr);

}  // namespace megalith

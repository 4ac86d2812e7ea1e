// See data_parallel_options.h.
#include "parallel/data_parallel_options.h"

#include <algorithm>
#include <limits>

#include "core/option.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"

namespace megalith {

void DataParallelOptions::visit(OptionVisitor& v) {
  v.group("Data parallelism");
  v.field(
      "use_distributed_optimizer", use_distributed_optimizer,
      "Divide the optimizer's state and work over the data-parallel ranks (ZeRO-1): gradients are reduce-scattered, "
      "updated parameters all-gathered.");
  v.field("overlap_grad_reduce", overlap_grad_reduce,
          "Sum gradients over ranks bucket by bucket while backward still runs, instead of all at its end.");
  v.field("overlap_param_gather", overlap_param_gather,
          "Gather updated parameters while the next forward runs; each block waits for its own. Needs "
          "use_distributed_optimizer and overlap_grad_reduce.");
  v.field(
      "grad_reduce_in_bf16", grad_reduce_in_bf16,
      "Gradients travel between ranks in bf16: half the bytes, each rank's part rounded. Over microbatches they are "
      "accumulated in fp32 all the same.");
  v.field("ddp_bucket_size", ddp_bucket_size,
          "A bucket is closed once it holds so many elements; default: the larger of 40000000 and 1000000 times the "
          "ranks that share the data, and one bucket for all without overlap_grad_reduce.")
      .unit("elements")
      .at_least(1);
  v.field("ddp_num_buckets", ddp_num_buckets, "About so many buckets, instead of ddp_bucket_size.").at_least(1);
  v.field("ddp_pad_buckets_for_high_nccl_busbw", ddp_pad_buckets_for_high_nccl_busbw,
          "With use_distributed_optimizer, pad every bucket to a multiple of 65536 elements, which NCCL moves fastest "
          "over many ranks.");
}

std::vector<UserError> check_data_parallel_options(const DataParallelOptions& options,
                                                   const ParallelOptions& parallel) {
  std::vector<UserError> errors;
  const auto needs = [&](bool is_given, const std::string& name, bool is_met, const std::string& needed) {
    if (!is_given || is_met) return;
    errors.emplace_back(fmt::format("{} needs {}", name, needed),
                        fmt::format("add --{}, or leave {} out", needed, name));
  };
  const bool is_sharded = options.use_distributed_optimizer;
  needs(options.overlap_param_gather, "overlap_param_gather", is_sharded, "use_distributed_optimizer");
  needs(options.overlap_param_gather, "overlap_param_gather", options.overlap_grad_reduce, "overlap_grad_reduce");
  needs(options.ddp_pad_buckets_for_high_nccl_busbw, "ddp_pad_buckets_for_high_nccl_busbw", is_sharded,
        "use_distributed_optimizer");
  needs(parallel.num_distributed_optimizer_instances > 1,
        fmt::format("num_distributed_optimizer_instances {}", parallel.num_distributed_optimizer_instances), is_sharded,
        "use_distributed_optimizer");
  if (options.ddp_bucket_size && options.ddp_num_buckets) {
    errors.emplace_back(fmt::format("ddp_bucket_size {} and ddp_num_buckets {} are both given",
                                    *options.ddp_bucket_size, *options.ddp_num_buckets),
                        "keep one of them");
  }
  return errors;
}

int64_t bucket_elements(const DataParallelOptions& options, int64_t num_elements, int64_t dp_cp_size) {
  if (options.ddp_bucket_size) return *options.ddp_bucket_size;
  if (options.ddp_num_buckets) {
    return std::max<int64_t>((num_elements + *options.ddp_num_buckets - 1) / *options.ddp_num_buckets, 1);
  }
  if (!options.overlap_grad_reduce) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(40'000'000, 1'000'000 * dp_cp_size);
}

std::unique_ptr<DataParallel> make_data_parallel(const std::vector<Parameter*>& params, const Groups& groups,
                                                 const DataParallelOptions& options) {
  int64_t num_elements = 0;
  for (const Parameter* param : params) {
    if (param->is_trainable()) num_elements += param->placement().num_local_elements();
  }
  const GradBufferOptions gradients{.bucket_elements = bucket_elements(options, num_elements, groups.dp_cp->size()),
                                    .overlap = options.overlap_grad_reduce,
                                    .reduce_in_bf16 = options.grad_reduce_in_bf16};
  if (!options.use_distributed_optimizer) return std::make_unique<GradBuffer>(params, groups, gradients);
  return std::make_unique<ShardedGradBuffer>(
      params, groups,
      ShardedBufferOptions{.gradients = gradients,
                           .overlap_gather = options.overlap_param_gather,
                           .bucket_multiple = options.ddp_pad_buckets_for_high_nccl_busbw ? 65536 : 1});
}

}  // namespace megalith

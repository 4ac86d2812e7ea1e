#include "parallel/data_parallel_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "config/option.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"

namespace megalith {

void DataParallelOptions::visit(OptionVisitor& v) {
  v.group("Data parallelism", {.changes_numbers = false, .in_toy = InToy::kKept});
  v.field(
      "use_distributed_optimizer", use_distributed_optimizer,
      "Divide the optimizer's state and work over the data-parallel ranks (ZeRO-1): gradients are reduce-scattered, "
      "updated parameters all-gathered.");
  v.field("use_torch_fsdp2", use_torch_fsdp2,
          "Divide parameters, gradients and optimizer state over the data-parallel ranks (FSDP2, ZeRO-3): a layer is "
          "gathered while it computes. Gathers and reductions overlap by themselves.");
  v.field("torch_fsdp2_reshard_after_forward", torch_fsdp2_reshard_after_forward,
          "With use_torch_fsdp2, free a layer's parameters after its forward and gather them again in backward. Off: "
          "a layer is gathered once and stays whole for all microbatches in flight, several in a pipeline.")
      .opposite("torch_fsdp2_no_reshard_after_forward");
  v.field("fsdp_cpu_offload", fsdp_cpu_offload,
          "With use_torch_fsdp2, keep what a rank holds of parameters and gradients, and with it the optimizer's state, "
          "in host memory, where the CPU updates it; a layer is on the device while it computes. On the CPU nothing "
          "changes.");
  v.field("use_megatron_fsdp", use_megatron_fsdp,
          "Megatron-LM's FSDP. data_parallel_sharding_strategy says what is divided, and is done by the options above.")
      .alias("use_custom_fsdp");
  v.choice("data_parallel_sharding_strategy", data_parallel_sharding_strategy,
           {"no_shard", "optim", "optim_grads", "optim_grads_params"},
           "What use_megatron_fsdp divides over the data-parallel ranks. no_shard: nothing. optim: as "
           "use_distributed_optimizer. optim_grads: gradients too, as use_torch_fsdp2 without "
           "torch_fsdp2_reshard_after_forward. optim_grads_params: parameters too, as use_torch_fsdp2.");
  v.field("overlap_grad_reduce", overlap_grad_reduce,
          "Sum gradients over ranks bucket by bucket while backward still runs, instead of all at its end.");
  v.field("overlap_param_gather", overlap_param_gather,
          "Gather updated parameters while the next forward runs; each block waits for its own. Needs "
          "use_distributed_optimizer and overlap_grad_reduce.");
  v.choice("main_grads_dtype", main_grads_dtype, {"fp32", "bf16"},
           "Dtype of 16-bit parameters' gradient buffers: half the bytes with bf16. A microbatch's gradient is "
           "computed in fp32 and its sum with the buffer rounded once; between ranks bf16 buffers are summed in bf16. "
           "Norms, clipping and the update are computed in fp32.")
      .changes_numbers(true)
      .in_toy(InToy::kSetAside);
  v.field(
       "grad_reduce_in_bf16", grad_reduce_in_bf16,
       "Gradients travel between ranks in bf16: half the bytes, each rank's part rounded. Over microbatches they are "
       "accumulated in fp32 all the same. An expert's are summed, and rounded, over the ranks that hold it.")
      .changes_numbers(true)
      .in_toy(InToy::kSetAside);
  v.field("ddp_bucket_size", ddp_bucket_size,
          "A bucket, or a part of a layer with use_torch_fsdp2, is closed once it holds so many elements; default: the "
          "larger of 40000000 and 1000000 times the ranks that share the data, one bucket for all without "
          "overlap_grad_reduce; with use_torch_fsdp2 40000000.")
      .unit("elements")
      .at_least(1)
      .in_toy(InToy::kMade);
  v.field("ddp_num_buckets", ddp_num_buckets, "About so many buckets, instead of ddp_bucket_size; with use_torch_fsdp2 parts.").at_least(1);
  v.field("ddp_pad_buckets_for_high_nccl_busbw", ddp_pad_buckets_for_high_nccl_busbw,
          "With use_distributed_optimizer, pad every bucket to a multiple of 65536 elements, which NCCL moves fastest "
          "over many ranks.");
}

namespace {

std::string fsdp_name(const DataParallelOptions& options) {
  return options.use_megatron_fsdp ? "use_megatron_fsdp" : "use_torch_fsdp2";
}

std::vector<UserError> resolve_strategy(DataParallelOptions& options, const OptionSet& set,
                                        std::vector<std::string>& notes) {
  using enum ShardingStrategy;
  const ShardingStrategy strategy = options.data_parallel_sharding_strategy;
  const std::string written = set.find("data_parallel_sharding_strategy")->text();
  if (!options.use_megatron_fsdp) {
    if (strategy == kNothing) return {};
    return {UserError(fmt::format("data_parallel_sharding_strategy {} needs use_megatron_fsdp", written),
                      "add --use_megatron_fsdp, or use use_distributed_optimizer or use_torch_fsdp2")};
  }
  if (options.use_torch_fsdp2) {
    return {UserError("use_megatron_fsdp and use_torch_fsdp2 are both on", "keep one of them")};
  }
  std::string ours = "nothing is divided";
  if (strategy == kOptimizer) {
    options.use_distributed_optimizer = true;
    ours = "use_distributed_optimizer";
  } else if (strategy != kNothing) {
    options.use_torch_fsdp2 = true;
    options.torch_fsdp2_reshard_after_forward = strategy == kAll;
    ours = strategy == kAll ? "use_torch_fsdp2" : "use_torch_fsdp2 without torch_fsdp2_reshard_after_forward";
  } else if (options.use_distributed_optimizer) {
    ours = "use_distributed_optimizer, which is on";
  }
  notes.push_back(fmt::format("use_megatron_fsdp with data_parallel_sharding_strategy {}: {}", written, ours));
  return {};
}

}  // namespace

std::vector<UserError> resolve_fsdp(DataParallelOptions& options, const OptionSet& set,
                                    std::vector<std::string>& notes) {
  std::vector<UserError> errors = resolve_strategy(options, set, notes);
  if (!options.use_torch_fsdp2 || !errors.empty()) return errors;
  const OptionSource& fsdp = set.find("use_torch_fsdp2")->source();
  std::vector<std::string> dropped;
  const auto drop = [&](const std::string& name, bool& value) {
    if (!value) return;
    const OptionSource& source = set.find(name)->source();
    // Megatron-LM's own recipes combine them with its FSDP.
    if (source.layer >= OptionLayer::kFile && !options.use_megatron_fsdp) {
      errors.emplace_back(fmt::format("use_torch_fsdp2 ({}) and {} ({}) are both on", fsdp.where, name, source.where),
                          fmt::format("FSDP shards the optimizer's state by itself: leave {} out", name));
    } else {
      value = false;
      dropped.push_back(name);
    }
  };
  drop("use_distributed_optimizer", options.use_distributed_optimizer);
  drop("overlap_param_gather", options.overlap_param_gather);
  drop("ddp_pad_buckets_for_high_nccl_busbw", options.ddp_pad_buckets_for_high_nccl_busbw);
  if (!dropped.empty()) {
    notes.push_back(fmt::format("{} is on: off are {}", fsdp_name(options), fmt::join(dropped, ", ")));
  }
  return errors;
}

std::vector<UserError> check_data_parallel_options(const DataParallelOptions& options,
                                                   const ParallelOptions& parallel) {
  std::vector<UserError> errors;
  const auto needs = [&](bool is_given, const std::string& name, bool is_met, const std::string& needed) {
    if (!is_given || is_met) return;
    errors.emplace_back(fmt::format("{} needs {}", name, needed),
                        fmt::format("add --{}, or leave {} out", needed, name));
  };
  const bool is_sharded = options.use_distributed_optimizer || options.use_torch_fsdp2;
  needs(options.overlap_param_gather, "overlap_param_gather", is_sharded, "use_distributed_optimizer");
  needs(options.overlap_param_gather, "overlap_param_gather", options.overlap_grad_reduce, "overlap_grad_reduce");
  needs(options.ddp_pad_buckets_for_high_nccl_busbw, "ddp_pad_buckets_for_high_nccl_busbw", is_sharded,
        "use_distributed_optimizer");
  needs(parallel.num_distributed_optimizer_instances > 1,
        fmt::format("num_distributed_optimizer_instances {}", parallel.num_distributed_optimizer_instances), is_sharded,
        "use_distributed_optimizer");
  if (options.fsdp_cpu_offload && !options.use_torch_fsdp2) {
    errors.emplace_back("fsdp_cpu_offload needs use_torch_fsdp2",
                        "add --use_torch_fsdp2, or keep only the optimizer's state in host memory with "
                        "--optimizer_cpu_offload");
  } else if (!options.torch_fsdp2_reshard_after_forward && !options.use_torch_fsdp2) {
    errors.emplace_back("torch_fsdp2_no_reshard_after_forward needs use_torch_fsdp2",
                        "add --use_torch_fsdp2, or leave it out");
  }
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

void set_grad_dtype(const std::vector<Parameter*>& params, const DataParallelOptions& options) {
  if (options.main_grads_dtype == GradDtype::kFp32) return;
  for (Parameter* param : params) param->narrow_grad();
}

std::unique_ptr<DataParallel> make_data_parallel(const std::vector<Parameter*>& params, const Groups& groups,
                                                 const DataParallelOptions& options, const std::vector<Block>& blocks,
                                                 std::optional<at::Device> device, const BucketCutFunction& cut) {
  set_grad_dtype(params, options);
  int64_t num_elements = 0;
  for (const Parameter* param : params) {
    if (param->is_trainable()) num_elements += param->placement().num_local_elements();
  }
  if (options.use_torch_fsdp2) {
    const bool is_said = options.ddp_bucket_size || options.ddp_num_buckets;
    const int64_t part_elements = is_said ? bucket_elements(options, num_elements, groups.dp_cp->size())
                                          : FsdpOptions().part_elements;
    return std::make_unique<Fsdp>(params, blocks, groups,
                                  FsdpOptions{.reshard_after_forward = options.torch_fsdp2_reshard_after_forward,
                                              .grad_reduce_in_bf16 = options.grad_reduce_in_bf16,
                                              .part_elements = part_elements,
                                              .cpu_offload = options.fsdp_cpu_offload,
                                              .device = device});
  }
  const GradBufferOptions gradients{.bucket_elements = bucket_elements(options, num_elements, groups.dp_cp->size()),
                                    .overlap = options.overlap_grad_reduce,
                                    .reduce_in_bf16 = options.grad_reduce_in_bf16};
  if (!options.use_distributed_optimizer) return std::make_unique<GradBuffer>(params, groups, gradients);
  return std::make_unique<ShardedGradBuffer>(
      params, groups,
      ShardedBufferOptions{.gradients = gradients,
                           .overlap_gather = options.overlap_param_gather,
                           .bucket_multiple = options.ddp_pad_buckets_for_high_nccl_busbw ? 65536 : 1,
                           .cut = cut});
}

}  // namespace megalith

#include "train/memory_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "comm/fake_group.h"
#include "core/error.h"
#include "core/strings.h"
#include "optim/optimizer.h"
#include "parallel/fsdp.h"
#include "train/activation_report.h"
#include "train/alter_run.h"
#include "train/setup.h"

namespace megalith {
namespace {

constexpr std::string_view kMasters = "master";  // OptimizerTensor::key

// A step's batches exist at once, while the next are read.
int64_t batch_bytes(const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const DataOptions& data = resolved.config.data;
  int64_t of_token = 8 + 8 + 4;  // tokens, labels, loss weights (data/batch.h)
  if (data.reset_position_ids) of_token += 8;
  if (data.reset_attention_mask) of_token += 4;
  const int64_t steps = data.num_workers > 0 ? 2 : 1;
  return steps * d.num_microbatches * d.micro_batch_size * d.seq_length * of_token;
}

struct Candidate {
  std::string words, cost;
  std::function<bool(const Config&)> is_open;  // true if the run does not use it yet
  std::function<void(Config&)> change;
  int64_t times_ranks = 1;
};

// By cost: none, a little speed, more speed, other numbers, more ranks, another task.
std::vector<Candidate> candidates(const Resolved& resolved) {
  const Config& c = resolved.config;
  const int64_t dp = resolved.derived.data_parallel_size;
  const int64_t tp = c.parallel.tensor_model_parallel_size, pp = c.parallel.pipeline_model_parallel_size;
  const int64_t micro = c.train.micro_batch_size, length = resolved.derived.seq_length;
  const auto is_sharded = [](const Config& config) {
    return config.data_parallel.use_distributed_optimizer || config.data_parallel.use_torch_fsdp2;
  };
  return {
      {"--use_distributed_optimizer", "no speed",
       [dp, is_sharded](const Config& config) { return dp > 1 && !is_sharded(config); },
       [](Config& config) { config.data_parallel.use_distributed_optimizer = true; }},
      {"--master_weights remainder", "nothing: results are equal to the bit",
       [](const Config& config) {
         return config.train.bf16 && config.optimizer.optimizer == OptimizerKind::kAdam &&
                config.optimizer.master_weights == MasterWeights::kFp32;
       },
       [](Config& config) { config.optimizer.master_weights = MasterWeights::kRemainder; }},
      {"--recompute_granularity selective", "a few per cent more computation",
       [](const Config& config) { return !config.recompute.is_full() && !config.recompute.is_selective(); },
       [](Config& config) { config.recompute.recompute_granularity = "selective"; }},
      {fmt::format("--micro_batch_size {} (with the same global batch)", micro / 2), "smaller products",
       [micro](const Config&) { return micro > 1 && micro % 2 == 0; },
       [micro, batch = resolved.derived.global_batch_size](Config& config) {
         config.train.micro_batch_size = micro / 2;
         config.train.global_batch_size = batch;
       }},
      {"--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
       "about a third more computation",
       [](const Config& config) { return !config.recompute.is_full(); },
       [](Config& config) {
         config.recompute = {};
         config.recompute.recompute_granularity = "full";
         config.recompute.recompute_method = "uniform";
         config.recompute.recompute_num_layers = 1;
       }},
      {"--main_grads_dtype bf16", "gradients rounded to 8 significant bits a microbatch",
       [](const Config& config) {
         return config.train.bf16 && config.data_parallel.main_grads_dtype == GradDtype::kFp32;
       },
       [](Config& config) { config.data_parallel.main_grads_dtype = GradDtype::kBf16; }},
      {"--use_torch_fsdp2", "weights gathered twice a microbatch",
       [dp](const Config& config) { return dp > 1 && !config.data_parallel.use_torch_fsdp2; },
       [](Config& config) {
         DataParallelOptions sharded;
         sharded.use_torch_fsdp2 = true;
         sharded.main_grads_dtype = config.data_parallel.main_grads_dtype;
         sharded.grad_reduce_in_bf16 = config.data_parallel.grad_reduce_in_bf16;
         sharded.ddp_bucket_size = config.data_parallel.ddp_bucket_size;
         config.data_parallel = sharded;
       }},
      {"--bf16", "products of 8 significant bits",
       [](const Config& config) { return !config.train.bf16 && !config.train.fp16; },
       [](Config& config) {
         config.train.bf16 = true;
         config.train.fp32 = false;
       }},
      {"--use_precision_aware_optimizer --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16",
       "moments of 8 significant bits",
       [](const Config& config) {
         return config.optimizer.optimizer == OptimizerKind::kAdam &&
                config.optimizer.exp_avg_dtype == MomentDtype::kFp32;
       },
       [](Config& config) {
         config.optimizer.use_precision_aware_optimizer = true;
         config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = MomentDtype::kBf16;
       }},
      {fmt::format("--tensor_model_parallel_size {} on {} ranks", 2 * tp, 2 * resolved.derived.world_size),
       "more ranks", [](const Config&) { return true; },
       [tp](Config& config) { config.parallel.tensor_model_parallel_size = 2 * tp; }, 2},
      {fmt::format("--pipeline_model_parallel_size {} on {} ranks", 2 * pp, 2 * resolved.derived.world_size),
       "more ranks", [](const Config&) { return true; },
       [pp](Config& config) { config.parallel.pipeline_model_parallel_size = 2 * pp; }, 2},
      {fmt::format("--seq_length {}", length / 2), "another task",
       [length](const Config&) { return length > 1 && length % 2 == 0; },
       [length](Config& config) { config.train.seq_length = length / 2; }},
  };
}

std::set<std::string> messages(const std::vector<UserError>& errors) {
  std::set<std::string> all;
  for (const UserError& error : errors) all.insert(error.message());
  return all;
}

}  // namespace

std::vector<MemoryRow> MemoryEstimate::rows() const {
  std::vector<MemoryRow> all = {{"parameters", parameters},       {"eight-bit weights", weight_copies},
                                {"master weights", masters},      {"optimizer states", optimizer},
                                {"gradients", gradients},         {"keys and values", cache},
                                {"activations", activations},     {"logits and loss", logits},
                                {"communication", communication}, {"data", data},
                                {"host: parameters", host.parameters}, {"host: masters", host.masters},
                                {"host: states", host.optimizer}, {"host: gradients", host.gradients}};
  std::erase_if(all, [](const MemoryRow& row) { return row.bytes == 0; });
  return all;
}

std::string MemoryEstimate::text() const {
  std::vector<std::string> parts;
  for (const MemoryRow& row : rows()) parts.push_back(fmt::format("{} {}", row.owner, format_bytes(row.bytes)));
  return join(parts, ", ");
}

MemoryEstimate MemoryEstimate::of_one_memory() const {
  MemoryEstimate all = *this;
  all.parameters += host.parameters;
  all.gradients += host.gradients;
  all.masters += host.masters;
  all.optimizer += host.optimizer;
  all.host = {};
  return all;
}

std::string memory_table(const MemoryEstimate& memory, int64_t world_size) {
  const std::string on_host =
      memory.host.total() > 0 ? fmt::format(", and {} of host memory", format_bytes(memory.host.total())) : "";
  std::string text = fmt::format("memory of rank {}{}, estimated: {}{}\n", memory.rank,
                                 world_size > 1 ? ", of those that hold most" : "", format_bytes(memory.total()),
                                 on_host);
  for (const MemoryRow& row : memory.rows())
    text += fmt::format("  {:<18} {:>10}\n", row.owner, format_bytes(row.bytes));
  return text;
}

MemoryEstimate estimate_memory(const Resolved& resolved, int rank) {
  const Config& config = resolved.config;
  const Mesh mesh = Mesh::from_options(config.parallel, resolved.derived.world_size);
  MemoryEstimate memory;
  memory.rank = rank;
  const ActivationOwners owners = measure_activation_owners(resolved, mesh, rank);
  memory.activations = owners.all - owners.of_head;
  memory.logits = owners.of_head;
  memory.data = batch_bytes(resolved);

  const Groups groups(mesh, rank, fake_group_factory(rank));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  for (const auto& chunk : built.chunks) {
    if (chunk->recipe_memory() != nullptr) memory.weight_copies += chunk->recipe_memory()->weight_bytes();
  }
  const std::unique_ptr<DataParallel> data = make_data_parallel(resolved, built, groups, at::kMeta);
  const Optimizer optimizer(*data, groups, config.optimizer, config.runtime.kernels);
  const bool has_host_runs = resolved.derived.data_parallel.fsdp_cpu_offload;
  (has_host_runs ? memory.host.parameters : memory.parameters) = data->parameter_bytes();
  (has_host_runs ? memory.host.gradients : memory.gradients) = data->gradient_bytes();
  for (const OptimizerTensor& entry : optimizer.state()) {
    const bool is_master = entry.key == kMasters;
    int64_t& on_device = is_master ? memory.masters : memory.optimizer;
    int64_t& on_host = is_master ? memory.host.masters : memory.host.optimizer;
    (has_host_runs || entry.is_on_host ? on_host : on_device) += static_cast<int64_t>(entry.tensor.nbytes());
  }
  if (const auto* fsdp = dynamic_cast<const Fsdp*>(data.get())) {
    memory.communication = fsdp->whole_bytes_bound();
  } else if (resolved.derived.data_parallel.grad_reduce_in_bf16 && groups.dp_cp->size() > 1 &&
             resolved.derived.data_parallel.main_grads_dtype == GradDtype::kFp32) {
    memory.communication = memory.gradients / 2;
  }
  return memory;
}

std::vector<MemoryEstimate> estimate_stages(const Resolved& resolved) {
  const Mesh mesh = Mesh::from_options(resolved.config.parallel, resolved.derived.world_size);
  std::vector<MemoryEstimate> stages;
  for (int stage = 0; stage < mesh.size(Axis::kPp); ++stage) {
    stages.push_back(estimate_memory(resolved, mesh.rank_at(/*tp=*/0, /*cp=*/0, /*dp=*/0, stage)));
  }
  return stages;
}

MemoryEstimate estimate_largest(const std::vector<MemoryEstimate>& stages) {
  return *std::ranges::max_element(stages, {}, &MemoryEstimate::total);
}

int64_t upper_memory_bound(int64_t tensor_bytes, const ChipRates& chip) {
  constexpr double kFragments = 1.06, kBytesOfGib = 1024.0 * 1024 * 1024;
  return static_cast<int64_t>(kFragments * static_cast<double>(tensor_bytes) + chip.context_gib * kBytesOfGib);
}

int64_t memory_left(int64_t tensor_bytes, int64_t memory_bytes) {
  constexpr double kUsable = 0.95;
  return static_cast<int64_t>(kUsable * static_cast<double>(memory_bytes)) - tensor_bytes;
}

std::vector<MemorySaving> cheapest_savings(const Resolved& resolved, const MemoryEstimate& estimate,
                                           int64_t missing_bytes, bool may_add_ranks, const MemoryMeasure& measure,
                                           const SpeedOf& speed_of) {
  constexpr size_t kMost = 3;
  // Errors due to what the copy lacks, such as a tokenizer, do not count.
  std::vector<UserError> before;
  alter_run(
      resolved, [](Resolved&) {}, resolved.derived.world_size, before);
  const std::set<std::string> known = messages(before);
  std::vector<MemorySaving> savings;
  std::vector<double> slowdowns;
  for (const Candidate& candidate : candidates(resolved)) {
    if (savings.size() == kMost) break;
    if (candidate.times_ranks > 1 && !may_add_ranks) continue;
    if (!candidate.is_open(resolved.config)) continue;
    std::vector<UserError> errors;
    const std::unique_ptr<Resolved> changed =
        alter_run(
            resolved, [&](Resolved& copy) { candidate.change(copy.config); },
            resolved.derived.world_size * candidate.times_ranks, errors);
    const std::set<std::string> found = messages(errors);
    if (!std::includes(known.begin(), known.end(), found.begin(), found.end())) continue;
    // The rank at or near the same pipeline stage.
    const int rank = std::min(estimate.rank, narrow<int>(changed->derived.world_size) - 1);
    const int64_t saved = estimate.total() - measure(*changed, rank).total();
    if (saved <= 0 || saved < missing_bytes / 10) continue;
    savings.push_back({candidate.words, saved, candidate.cost});
    if (speed_of) slowdowns.push_back(1 / speed_of(*changed));
  }
  if (savings.empty() || !speed_of) return savings;
  const double now = 1 / speed_of(resolved);
  std::vector<size_t> order(savings.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return slowdowns[i]; });
  std::vector<MemorySaving> sorted;
  for (const size_t i : order) {
    savings[i].cost = fmt::format("{:+.1f} % GPU time a token ({})", 100 * (slowdowns[i] / now - 1), savings[i].cost);
    sorted.push_back(std::move(savings[i]));
  }
  return sorted;
}

}  // namespace megalith

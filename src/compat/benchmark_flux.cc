// See benchmark_flux.h. Source: black-forest-labs/flux (Apache-2.0) model.py; torchtitan v0.2.2 models/flux.
#include "compat/benchmark_flux.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr int64_t kHidden = 3072, kHeadDim = 128, kMlpRatio = 4;
constexpr int64_t kDoubleBlocks = 19, kSingleBlocks = 38;
constexpr int64_t kPatchChannels = 64, kTextDim = 4096, kPooledDim = 768, kTimeDim = 256;
constexpr int64_t kTextTokens = 512, kImageTokens = 256;  // of a picture of 256 by 256

constexpr int64_t linear(int64_t in, int64_t out) { return in * out + out; }

// Weights in bf16, gradients, masters and both moments in fp32, divided over all ranks.
struct FluxMemory {
  int64_t parameters, gradients, optimizer;
  int64_t total() const { return parameters + gradients + optimizer; }
};

FluxMemory flux_memory(int64_t ranks) {
  const int64_t share = (flux_parameters() + ranks - 1) / ranks;
  return {2 * share, 4 * share, 12 * share};
}

}  // namespace

int64_t flux_parameters() {
  constexpr int64_t h = kHidden;
  constexpr int64_t norms = 2 * kHeadDim;  // of queries and keys
  constexpr int64_t stream =
      linear(h, 6 * h) + linear(h, 3 * h) + norms + linear(h, h) + linear(h, kMlpRatio * h) + linear(kMlpRatio * h, h);
  constexpr int64_t single = linear(h, 3 * h) + linear(h, (3 + kMlpRatio) * h) + linear((1 + kMlpRatio) * h, h) + norms;
  constexpr int64_t inputs = linear(kPatchChannels, h) + linear(kTextDim, h) + linear(kTimeDim, h) + linear(h, h) +
                             linear(kPooledDim, h) + linear(h, h);
  constexpr int64_t output = linear(h, kPatchChannels) + linear(h, 2 * h);
  return kDoubleBlocks * 2 * stream + kSingleBlocks * single + inputs + output;
}

std::string flux_dry_run(const LaunchPlan& plan) {
  const int64_t ranks = plan.world_size();
  const PlannedOption* planned = plan.find("micro_batch_size");
  MEGALITH_CHECK(planned != nullptr, "a plan without a batch");
  const int64_t batch = std::stoll(planned->value);
  const FluxMemory memory = flux_memory(ranks);
  if (plan.dry_run != DryRunKind::kJson) {
    return fmt::format(
        "model: FLUX.1-dev, {} parameters in {} double and {} single blocks\n"
        "layout: {} ranks, FSDP2, bf16\n"
        "batch: {} pictures of 256 by 256 a rank, {} in all; {} tokens of text and {} of a picture\n"
        "memory of a rank: parameters {}, gradients {}, optimizer {}; activations are not counted\n"
        "dry run: nothing was allocated. {}\n",
        flux_parameters(), kDoubleBlocks, kSingleBlocks, ranks, batch, batch * ranks, kTextTokens, kImageTokens,
        format_bytes(memory.parameters), format_bytes(memory.gradients), format_bytes(memory.optimizer),
        plan.benchmark->refusal);
  }
  OrderedJson exports = OrderedJson::object();
  for (const PlannedExport& one : plan.exports) {
    if (one.is_shown) exports[one.name] = one.value;
  }
  const OrderedJson json = {
      {"world_size", ranks},
      {"data_parallel_size", ranks},
      {"tensor_model_parallel_size", 1},
      {"pipeline_model_parallel_size", 1},
      {"context_parallel_size", 1},
      {"expert_model_parallel_size", 1},
      {"num_layers", kDoubleBlocks + kSingleBlocks},
      {"micro_batch_size", batch},
      {"global_batch_size", batch * ranks},
      {"seq_length", kTextTokens + kImageTokens},
      {"num_microbatches", 1},
      {"tokens_per_iteration", batch * ranks * (kTextTokens + kImageTokens)},
      {"train_iters", nullptr},
      {"parameters", flux_parameters()},
      {"precision", "bf16"},
      {"sharding", "fsdp2"},
      {"recompute", {{"granularity", "full"}, {"method", nullptr}, {"num_layers", nullptr}}},
      {"memory_bytes",
       {{"parameters", memory.parameters},
        {"gradients", memory.gradients},
        {"optimizer", memory.optimizer},
        {"activations", nullptr},
        {"total", memory.total()}}},
      {"exports", std::move(exports)},
      {"command", nullptr},
      {"options", OrderedJson::object()},
      {"refusal", plan.benchmark->refusal},
  };
  return dump_json_pretty(json);
}

}  // namespace megalith

#include "train/inference_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "comm/fake_group.h"
#include "comm/groups.h"
#include "device/storage_watch.h"
#include "train/activation_report.h"
#include "train/setup.h"

namespace megalith {
namespace {

int64_t bytes_of(const KvCache& cache) {
  int64_t bytes = 0;
  for (const KvCache::Slot& slot : cache.slots) {
    for (const at::Tensor* tensor : {&slot.k, &slot.v, &slot.state}) {
      if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
    }
  }
  return bytes;
}

// The previous stage's output, without values.
Bundle boundary_of(const Model& chunk, const ForwardContext& context) {
  Bundle boundary;
  for (const TensorSpec& spec : chunk.boundary(context)) {
    boundary.set(spec.name, at::empty(spec.shape, at::TensorOptions(at::kMeta).dtype(spec.dtype)));
  }
  return boundary;
}

}  // namespace

MemoryEstimate estimate_inference(const Resolved& resolved, int rank, const InferenceShape& shape) {
  const at::NoGradGuard no_grad;
  const Mesh mesh = Mesh::from_options(resolved.config.parallel, resolved.derived.world_size);
  const Groups groups(mesh, rank, fake_group_factory(rank));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  MemoryEstimate memory;
  memory.rank = rank;
  for (const Parameter* parameter : built.parameters()) {
    memory.parameters += parameter->num_bytes();
  }
  // With a cache every rank has the whole sequence.
  const bool has_cache = shape.cached_positions > 0;
  const int64_t cp = has_cache ? 1 : groups.cp->size();
  for (const auto& chunk : built.chunks) {
    if (chunk->recipe_memory() != nullptr) memory.weight_copies += chunk->recipe_memory()->weight_bytes();
    ModelInput input = shape_of_microbatch(shape.rows, shape.length / cp, cp > 1 ? shape.length : 0);
    resolved.kind().complete_shapes(input, resolved, shape.length);
    KvCache cache;
    cache.capacity = shape.cached_positions;
    input.context.is_training = false;
    if (has_cache) input.context.cache = &cache;
    const Bundle boundary = boundary_of(*chunk, input.context);
    const StorageWatch watch;
    chunk->forward(input, boundary, shape.head);
    const int64_t kept = bytes_of(cache);
    memory.cache += kept;
    memory.activations = std::max(memory.activations, watch.peak_bytes() - kept);
  }
  return memory;
}

MemoryEstimate estimate_evaluation(const Resolved& resolved, int rank) {
  const HeadOutput head = make_task(resolved)->evaluated_output();
  return estimate_inference(
      resolved, rank, {.rows = resolved.derived.micro_batch_size, .length = resolved.derived.seq_length, .head = head});
}

MemoryMeasure estimate_generation(int64_t prompt_length, int64_t max_new_tokens, int64_t rows) {
  return [=](const Resolved& resolved, int rank) {
    MemoryEstimate memory = estimate_inference(
        resolved, rank,
        {.length = prompt_length, .cached_positions = prompt_length + max_new_tokens, .head = HeadOutput::kLastLogits});
    // Rearranging rows keeps the old and the new cache.
    if (rows > 1) memory.cache *= 2 * rows;
    return memory;
  };
}

}  // namespace megalith

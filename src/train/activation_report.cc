#include "train/activation_report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "comm/fake_group.h"
#include "comm/groups.h"
#include "parallel/data_parallel_options.h"
#include "parallel/recompute.h"
#include "train/setup.h"

namespace megalith {

namespace {

constexpr std::string_view kHead = "head";  // block name, models/transformer.cc

}  // namespace

std::vector<BlockMemory> measure_blocks(Model& chunk, const ModelInput& input, const RecomputePlan& plan,
                                        bool are_layers_alike, PassScope scope) {
  for (Parameter* parameter : chunk.parameters()) {
    if (!parameter->is_trainable() || parameter->has_grad_buffer()) continue;
    parameter->attach_grad_buffer(
        at::empty(parameter->value().sizes(), parameter->data().options().dtype(parameter->grad_dtype())));
  }
  RecomputePlan on_device = plan;
  on_device.offloaded.clear();  // activation_cost() subtracts them
  MeasuringRunner measuring(on_device, are_layers_alike, std::move(scope));
  RecomputeRunner runner(on_device, &measuring, /*offload=*/nullptr);
  chunk.set_runner(&runner);
  Bundle boundary;
  for (const TensorSpec& spec : chunk.boundary(input.context)) {
    boundary.set(spec.name,
                 at::empty(spec.shape, at::TensorOptions(at::kMeta).dtype(spec.dtype)).set_requires_grad(true));
  }
  chunk.forward(input, boundary, HeadOutput::kLoss);
  chunk.set_runner(nullptr);
  return measuring.blocks();
}

ActivationCost measure_chunk(Model& chunk, const ModelInput& input, const RecomputePlan& plan, bool are_layers_alike) {
  return activation_cost(measure_blocks(chunk, input, plan, are_layers_alike), plan);
}

ModelInput shape_of_microbatch(int64_t b, int64_t s, int64_t row_length) {
  const auto numbers = [](std::vector<int64_t> shape) {
    return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kLong));
  };
  ModelInput input;
  input.tokens = numbers({b, s});
  input.labels = numbers({b, s});
  input.loss_weights = at::empty({b, s}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  input.context.b = b;
  input.context.s = s;
  input.context.position_ids = numbers({b, s});
  input.context.row_ids = numbers({b, s});
  input.context.mask.is_causal = true;
  input.context.row_length = row_length;
  if (row_length > 0) input.context.mask.query_positions = numbers({s});
  return input;
}

ModelInput shape_of_microbatch(const Resolved& resolved) {
  const int64_t cp = resolved.config.parallel.context_parallel_size;
  const CostShape sample = resolved.kind().sample_shape(resolved);
  ModelInput input = shape_of_microbatch(resolved.derived.micro_batch_size, sample.s / cp, cp > 1 ? sample.s : 0);
  resolved.kind().complete_shapes(input, resolved, sample.encoder_s);
  return input;
}

void add_shapes(ModelInput& input, const ModelConfig& config, std::span<const InputSpec> specs) {
  for (const InputSpec& spec : specs) {
    const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(spec.dtype);
    input.more.set(spec.name, at::empty(input_shape(spec, config, input.context), options));
  }
}

int64_t measure_activations(const Resolved& resolved, const Mesh& mesh, int rank) {
  return measure_activation_owners(resolved, mesh, rank).all;
}

ActivationOwners measure_activation_owners(const Resolved& resolved, const Mesh& mesh, int rank) {
  const Derived& d = resolved.derived;
  const Groups groups(mesh, rank, fake_group_factory(rank));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  set_grad_dtype(built.parameters(), d.data_parallel);
  const int64_t cp = groups.cp->size();
  const ModelInput input = shape_of_microbatch(resolved);
  std::vector<ActivationCost> chunks, headless;
  for (size_t chunk = 0; chunk < built.chunks.size(); ++chunk) {
    // Layers of a shared sequence may exchange keys in different ways.
    const RecomputePlan& plan = built.recompute[chunk];
    std::vector<BlockMemory> blocks = measure_blocks(*built.chunks[chunk], input, plan, /*are_layers_alike=*/cp == 1);
    chunks.push_back(activation_cost(blocks, plan));
    std::erase_if(blocks, [](const BlockMemory& memory) { return memory.block.name == kHead; });
    headless.push_back(activation_cost(blocks, plan));
  }
  const PipelineSchedule schedule = built.pipeline.schedule(narrow<int>(d.num_microbatches));
  const std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(groups.pp->rank())];
  const int64_t all = pipeline_activation_peak(actions, chunks);
  return {.all = all, .of_head = all - pipeline_activation_peak(actions, headless)};
}

}  // namespace megalith

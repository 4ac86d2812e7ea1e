#include "parallel/activation_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "device/storage_watch.h"
#include "nn/function.h"

namespace megalith {

// Consumes a block's outputs without keeping them; outputs of one shape get one gradient, as parts of a residual
// stream.
struct SinkFunction : torch::autograd::Function<SinkFunction> {
  using Shapes = std::vector<std::pair<std::vector<int64_t>, at::TensorOptions>>;

  static at::Tensor forward(torch::autograd::AutogradContext* node, at::TensorList outputs, const Shapes& shapes) {
    hold(node, shapes);
    return at::empty({}, outputs[0].options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    torch::autograd::variable_list all;
    const Shapes& shapes = held<Shapes>(node);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const bool is_shared = i > 0 && shapes[i].first == shapes[0].first;
      all.push_back(is_shared ? all[0] : at::empty(shapes[i].first, shapes[i].second));
    }
    all.emplace_back();  // shapes
    return all;
  }
};

namespace {

// As from another block: not a leaf, whose graph would hold it.
at::Tensor input_like(const at::Tensor& input) {
  if (!input.defined()) return {};
  if (!input.requires_grad()) return at::empty_like(input);
  return at::empty({1}, input.options().requires_grad(false))
      .set_requires_grad(true)
      .expand(input.sizes())
      .contiguous();
}

}  // namespace

MeasuringRunner::MeasuringRunner(RecomputePlan plan, bool are_layers_alike, PassScope scope)
    : plan_(std::move(plan)), are_layers_alike_(are_layers_alike), scope_(std::move(scope)) {}

std::vector<at::Tensor> MeasuringRunner::run(const Block& block, const std::vector<at::Tensor>& inputs,
                                             const BlockBody& body) {
  const std::string kind = kind_of(block, inputs);
  auto found = measured_.find(kind);
  if (found == measured_.end()) found = measured_.emplace(kind, measure(block, inputs, body)).first;
  blocks_.push_back(found->second.memory);
  blocks_.back().block = block;
  return found->second.outputs;
}

std::string MeasuringRunner::kind_of(const Block& block, const std::vector<at::Tensor>& inputs) const {
  if (!block.is_layer || !are_layers_alike_) return block.name;
  std::string kind = fmt::format("{} {}", plan_.layers.contains(block.layer), block.adds_inputs);
  for (const at::Tensor& input : inputs) kind += input.defined() ? " input" : " none";
  for (const Module* module : block.modules) {
    for (const Parameter* parameter : module->parameters()) {
      kind += fmt::format(" {}{}", fmt::join(parameter->placement().local_shape, "x"), parameter->is_trainable());
    }
  }
  return kind;
}

MeasuringRunner::Measured MeasuringRunner::measure(const Block& block, const std::vector<at::Tensor>& inputs,
                                                   const BlockBody& body) const {
  const auto enter = [&](bool is_backward) { return scope_ ? scope_(is_backward) : nullptr; };
  Measured result{.memory = {.block = block}, .outputs = {}};
  SinkFunction::Shapes shapes;
  std::vector<bool> is_defined;
  {
    const at::AutoGradMode record(true);
    const StorageWatch watch;
    at::Tensor end;
    {
      std::vector<at::Tensor> given;
      for (const at::Tensor& input : inputs) given.push_back(input_like(input));
      std::vector<at::Tensor> outputs;
      {
        const auto pass = enter(/*is_backward=*/false);
        outputs = body(given);
      }
      for (const at::Tensor& output : outputs) {
        is_defined.push_back(output.defined());
        if (output.defined()) shapes.emplace_back(output.sizes().vec(), output.options().requires_grad(false));
      }
      std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });
      end = SinkFunction::apply(at::TensorList(outputs), shapes);
    }
    result.memory.kept = watch.live_bytes();
    if (end.requires_grad()) {
      const at::Tensor gradient = at::empty_like(end);
      const auto pass = enter(/*is_backward=*/true);
      end.backward(gradient);
    }
    result.memory.peak = watch.peak_bytes();
  }
  for (size_t i = 0, next = 0; i < is_defined.size(); ++i) {
    result.outputs.emplace_back();
    if (!is_defined[i]) continue;
    const auto& [shape, options] = shapes[next++];
    result.outputs.back() = at::empty(shape, options).set_requires_grad(true);
  }
  return result;
}

ActivationCost activation_cost(const std::vector<BlockMemory>& blocks, const RecomputePlan& plan) {
  int64_t kept = 0, peak = 0, fetched_ahead = 0;
  for (const BlockMemory& memory : blocks) {
    const bool is_offloaded = plan.offloaded.contains(memory.block.layer);
    peak = std::max(peak, kept + fetched_ahead + memory.peak);
    if (!is_offloaded) kept += memory.kept;
    fetched_ahead = is_offloaded ? memory.kept : 0;
  }
  return {.kept = kept, .peak = std::max(peak, kept)};
}

int64_t pipeline_activation_peak(const std::vector<Action>& actions, const std::vector<ActivationCost>& chunks) {
  int64_t held = 0, peak = 0;
  for (const Action& action : actions) {
    if (is_communication(action.kind)) continue;
    const ActivationCost& chunk = chunks.at(static_cast<size_t>(action.chunk));
    const bool begins = action.kind == ActionKind::kForward;
    // The running microbatch's kept bytes are in its own peak.
    peak = std::max(peak, held + chunk.peak - (begins ? 0 : chunk.kept));
    if (begins) held += chunk.kept;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightBackward) held -= chunk.kept;
  }
  return peak;
}

}  // namespace megalith

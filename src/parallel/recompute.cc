// Recomputation of blocks; see recompute.h.
#include "parallel/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "nn/recompute.h"

namespace megalith {
namespace {

std::vector<Parameter*> parameters_of(const Block& block) {
  std::vector<Parameter*> all;
  for (const Module* module : block.modules) {
    const std::vector<Parameter*> some = module->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Keeps the sum of two inputs of which the body sees no more, and gives it back as 0 + sum. The zero is negative, for
// -0 + x is x to the bit for every x.
RestoreInputs keep_inputs(std::vector<at::Tensor> inputs, bool adds_inputs, HostOffload* offload) {
  const bool is_sum = adds_inputs && inputs.size() == 2;
  if (is_sum) inputs = {inputs[0] + inputs[1]};
  RestoreInputs restore = offload != nullptr ? offload->store(inputs) : [inputs] { return inputs; };
  if (!is_sum) return restore;
  return [restore = std::move(restore)] {
    const at::Tensor sum = restore()[0];
    return std::vector<at::Tensor>{at::full_like(sum, -0.0), sum};
  };
}

}  // namespace

RecomputeRunner::RecomputeRunner(RecomputePlan plan, BlockRunner* outer, HostOffload* offload)
    : plan_(std::move(plan)), outer_(outer), offload_(offload) {
  MEGALITH_CHECK(plan_.offloaded.empty() || offload_ != nullptr, "layers are to be offloaded, but nothing takes them");
}

std::vector<at::Tensor> RecomputeRunner::run(const Block& block, const std::vector<at::Tensor>& inputs,
                                             const BlockBody& body) {
  if (!block.is_layer || !plan_.layers.contains(block.layer) || !at::GradMode::is_enabled()) {
    return run_block(outer_, block, inputs, body);
  }
  HostOffload* offload = plan_.offloaded.contains(block.layer) ? offload_ : nullptr;
  // By value: an outer runner may call it after this pass.
  const auto recomputed_body = [body, offload, parameters = parameters_of(block),
                                adds_inputs = block.adds_inputs](const std::vector<at::Tensor>& given) {
    return recomputed(body, given, parameters, [offload, adds_inputs](const std::vector<at::Tensor>& kept) {
      return keep_inputs(kept, adds_inputs, offload);
    });
  };
  return run_block(outer_, block, inputs, recomputed_body);
}

ActivationCost activation_cost(const std::vector<BlockCost>& blocks, const RecomputePlan& plan) {
  int64_t kept = 0, peak = 0, fetched_ahead = 0;
  // Backward frees the blocks behind one before it comes to it.
  for (const BlockCost& block : blocks) {
    const bool is_recomputed = plan.layers.contains(block.block.layer);
    const bool is_offloaded = plan.offloaded.contains(block.block.layer);
    if (!is_recomputed) {
      kept += block.cost.kept_bytes;
      peak = std::max(peak, kept + block.cost.recomputed_bytes + block.cost.working_bytes);
      continue;
    }
    // The block's own bytes hold its input where it is one tensor, and otherwise a sum of its own making: beside that
    // are then the kept sum and a zero. What comes back from the host was not there before.
    const int64_t beside = (block.block.adds_inputs ? 2 : 0) - (is_offloaded ? 0 : 1);
    if (!is_offloaded) kept += block.input_bytes;
    peak = std::max(peak, kept + beside * block.input_bytes + fetched_ahead + block.cost.kept_bytes +
                              block.cost.recomputed_bytes + block.cost.working_bytes);
    fetched_ahead = is_offloaded ? block.input_bytes : 0;
  }
  return {.kept = kept, .peak = std::max(peak, kept)};
}

int64_t pipeline_activation_peak(const std::vector<Action>& actions, const std::vector<ActivationCost>& chunks) {
  int64_t held = 0, peak = 0;
  for (const Action& action : actions) {
    if (is_communication(action.kind)) continue;
    const ActivationCost& chunk = chunks.at(static_cast<size_t>(action.chunk));
    const bool begins = action.kind == ActionKind::kForward;
    // What the microbatch under way keeps is in its own peak.
    peak = std::max(peak, held + chunk.peak - (begins ? 0 : chunk.kept));
    if (begins) held += chunk.kept;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightBackward) held -= chunk.kept;
  }
  return peak;
}

}  // namespace megalith

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

// Keeps only the sum of the first two inputs, all the body uses of them, and returns it as -0 + sum, which is exact for
// every sum.
std::vector<Kept> keep_inputs(std::vector<at::Tensor> inputs, bool adds_inputs, HostOffload* offload) {
  const bool is_sum = adds_inputs && inputs.size() >= 2;
  if (is_sum) {
    inputs[1] = inputs[0] + inputs[1];
    inputs.erase(inputs.begin());
  }
  std::vector<Kept> kept;
  if (offload != nullptr)
    kept = Kept::computed(inputs.size(), offload->store(inputs));
  else
    for (const at::Tensor& input : inputs) kept.emplace_back(input);
  if (!is_sum) return kept;
  kept.insert(kept.begin(), kept[0].then([](const at::Tensor& sum) { return at::full_like(sum, -0.0); }));
  return kept;
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

}  // namespace megalith

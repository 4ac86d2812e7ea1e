#include "optim/adamw.h"

#include <ATen/ATen.h>

#include "ops/adamw/adamw.h"

namespace megalith {
namespace {

bool keeps_bf16(const UpdateSlot& slot) {
  const bool has_narrow_weight = !slot.master.defined() && !slot.remainder.defined();
  return has_narrow_weight || slot.state[AdamwRule::kExpAvg].scalar_type() == at::kBFloat16;
}

ops::AdamwShard whole_shard(const UpdateSlot& slot) {
  return {.model = slot.model,
          .master = slot.master,
          .grad = slot.grad,
          .exp_avg = slot.state[AdamwRule::kExpAvg],
          .exp_avg_sq = slot.state[AdamwRule::kExpAvgSq],
          .lr = slot.lr,
          .weight_decay = slot.weight_decay,
          .remainder = slot.remainder,
          .drawn = {}};
}

ops::AdamwShard run_of_shard(const ops::AdamwShard& whole, const PartRun& run) {
  const auto taken = [&](const at::Tensor& x) {
    return x.defined() ? x.view({-1}).narrow(0, run.range.begin, run.range.size()) : x;
  };
  return {.model = taken(whole.model),
          .master = taken(whole.master),
          .grad = taken(whole.grad),
          .exp_avg = taken(whole.exp_avg),
          .exp_avg_sq = taken(whole.exp_avg_sq),
          .lr = whole.lr,
          .weight_decay = whole.weight_decay,
          .remainder = taken(whole.remainder),
          .drawn = run.drawn};
}

}  // namespace

std::vector<StateSpec> AdamwRule::state(const Parameter& parameter) const {
  const at::ScalarType wide = parameter.wide_dtype();
  // fp64 models are for exactness: moments stay fp64.
  const bool is_narrow = options_.exp_avg_dtype == MomentDtype::kBf16 && wide == at::kFloat;
  const at::ScalarType dtype = is_narrow ? at::kBFloat16 : wide;
  return {{"exp_avg", dtype}, {"exp_avg_sq", dtype}};
}

void AdamwRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  if (slots.empty()) return;
  std::vector<ops::AdamwShard> shards;
  shards.reserve(slots.size());
  for (const UpdateSlot& slot : slots) {
    const ops::AdamwShard whole = whole_shard(slot);
    if (!options_.stochastic_rounding || !keeps_bf16(slot)) {
      shards.push_back(whole);
      continue;
    }
    const auto [runs, is_new] = runs_.try_emplace(slot.part);
    if (is_new) runs->second = drawn_runs(*slot.part);
    for (const PartRun& run : runs->second) shards.push_back(run_of_shard(whole, run));
  }
  const ops::AdamwOptions options{options_.adam_beta1, options_.adam_beta2, options_.adam_eps};
  ops::adamw_(shards, step.grad_scale, options, kernels_, {.step = step.number, .is_made = step.is_made});
}

}  // namespace megalith

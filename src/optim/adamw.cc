// See adamw.h.
#include "optim/adamw.h"

#include "ops/adamw/adamw.h"

namespace megalith {

std::vector<StateSpec> AdamwRule::state(at::ScalarType grad_dtype) const {
  // An fp64 parameter is there for exactness: its moments stay fp64.
  const bool is_narrow = options_.exp_avg_dtype == MomentDtype::kBf16 && grad_dtype == at::kFloat;
  const at::ScalarType dtype = is_narrow ? at::kBFloat16 : grad_dtype;
  return {{"exp_avg", dtype}, {"exp_avg_sq", dtype}};
}

void AdamwRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  if (slots.empty()) return;
  std::vector<ops::AdamwShard> shards;
  shards.reserve(slots.size());
  for (const UpdateSlot& slot : slots) {
    shards.push_back({slot.model, slot.master, slot.grad, slot.state[0], slot.state[1], slot.lr, slot.weight_decay});
  }
  const ops::AdamwOptions options{options_.adam_beta1, options_.adam_beta2, options_.adam_eps};
  ops::adamw_(shards, step.grad_scale, options, kernels_, {.step = step.number, .is_made = step.is_made});
}

}  // namespace megalith

#include "optim/sgd.h"

#include <ATen/ATen.h>

namespace megalith {

std::vector<StateSpec> SgdRule::state(const Parameter& parameter) const {
  if (momentum_ == 0) return {};
  return {{"momentum_buffer", parameter.wide_dtype()}};
}

void SgdRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  for (const UpdateSlot& slot : slots) {
    at::Tensor direction = slot.wide_grad() * step.grad_scale;
    if (slot.weight_decay != 0) direction.add_(slot.master, slot.weight_decay);
    if (momentum_ != 0) {
      at::Tensor momentum = step.draft(slot.state[0]);
      direction = momentum.mul_(momentum_).add_(direction);
      step.settle(slot.state[0], momentum);
    }
    at::Tensor master = step.draft(slot.master);
    step.settle(slot.master, master.add_(direction, -slot.lr));
    if (slot.model.defined()) slot.model.copy_(slot.master);
  }
}

}  // namespace megalith

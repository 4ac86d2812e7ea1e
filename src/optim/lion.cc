#include "optim/lion.h"

#include <ATen/ATen.h>

namespace megalith {

void LionRule::update(std::span<const UpdateSlot> slots, const UpdateStep& step) {
  for (const UpdateSlot& slot : slots) {
    const at::Tensor gradient = slot.wide_grad() * step.grad_scale;
    const at::Tensor direction = (slot.state[0] * beta1_).add_(gradient, 1 - beta1_).sign_();
    at::Tensor mean = step.draft(slot.state[0]);
    step.settle(slot.state[0], mean.mul_(beta2_).add_(gradient, 1 - beta2_));
    at::Tensor master = step.draft(slot.master);
    step.settle(slot.master, master.mul_(1 - slot.lr * slot.weight_decay).add_(direction, -slot.lr));
    if (slot.model.defined()) slot.model.copy_(slot.master);
  }
}

}  // namespace megalith

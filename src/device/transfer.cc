// See transfer.h.
#include "device/transfer.h"

#include <ATen/ATen.h>

namespace megalith {
namespace {

bool is_accelerator(at::Device device) { return !device.is_cpu() && !device.is_meta(); }

}  // namespace

at::Tensor sent_to(const at::Tensor& tensor, at::Device device) {
  if (!is_accelerator(device) || !tensor.is_cpu()) return tensor.to(device);
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

HostCopy::HostCopy() : has_come_(at::kCPU) {}

HostCopy::HostCopy(const at::Tensor& tensor) : has_come_(tensor.device()) {
  if (!is_accelerator(tensor.device())) {
    host_ = tensor;
    return;
  }
  host_ = at::empty(tensor.sizes(), at::TensorOptions(at::kCPU).dtype(tensor.dtype()).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  has_come_.record(current_stream(tensor.device()));
}

const at::Tensor& HostCopy::wait() const {
  has_come_.wait();
  return host_;
}

}  // namespace megalith

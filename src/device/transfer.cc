#include "device/transfer.h"

#include <ATen/ATen.h>

namespace megalith {

bool has_own_memory(at::Device device) { return !device.is_cpu() && !device.is_meta(); }

at::Tensor empty_for_copies(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return at::empty(sizes, at::TensorOptions(at::kCPU).dtype(dtype).pinned_memory(has_own_memory(device)));
}

at::Tensor sent_to(const at::Tensor& tensor, at::Device device) {
  if (!has_own_memory(device) || !tensor.is_cpu()) return tensor.to(device);
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

HostCopy::HostCopy() : has_come_(at::kCPU) {}

HostCopy::HostCopy(const at::Tensor& tensor) : has_come_(tensor.device()) {
  if (!has_own_memory(tensor.device())) {
    host_ = tensor;
    return;
  }
  host_ = empty_for_copies(tensor.sizes(), tensor.scalar_type(), tensor.device());
  host_.copy_(tensor, /*non_blocking=*/true);
  has_come_.record(current_stream(tensor.device()));
}

const at::Tensor& HostCopy::wait() const {
  has_come_.wait();
  return host_;
}

}  // namespace megalith

// Registers rms_norm for GPUs (the key CUDA is ROCm's as well): launches on the current stream of the tensors' device.
#include "ops/rms_norm/gpu.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include "ops/library.h"
#include "ops/rms_norm/adapter.h"

namespace megalith::ops::gpu {
namespace {

void* stream_of(const at::Tensor& x) { return at::accelerator::getCurrentStream(x.device().index()).native_handle(); }

void forward(const RmsNormForward& a, const at::Tensor& x) {
  const c10::DeviceGuard on_device(x.device());
  rms_norm_forward(a, stream_of(x));
}

void backward(const RmsNormBackward& a, const at::Tensor& x) {
  const c10::DeviceGuard on_device(x.device());
  rms_norm_backward(a, stream_of(x));
}

}  // namespace
}  // namespace megalith::ops::gpu

TORCH_LIBRARY_IMPL(megalith, CUDA, m) {
  using namespace megalith::ops;
  RmsNormAdapter<gpu::forward, gpu::backward>::register_in(m);
}

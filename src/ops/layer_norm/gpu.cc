// Registers layer_norm for GPUs (the key CUDA is ROCm's as well): launches on the current stream of the tensors'
// device.
#include "ops/layer_norm/gpu.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include "ops/layer_norm/adapter.h"
#include "ops/library.h"

namespace megalith::ops::gpu {
namespace {

template <typename Arguments, void (*kLaunch)(const Arguments&, void*)>
void launch_layer_norm(const Arguments& a, const at::Tensor& x) {
  const c10::DeviceGuard on_device(x.device());
  kLaunch(a, at::accelerator::getCurrentStream(x.device().index()).native_handle());
}

}  // namespace
}  // namespace megalith::ops::gpu

TORCH_LIBRARY_IMPL(megalith, CUDA, m) {
  using namespace megalith::ops;
  LayerNormAdapter<gpu::launch_layer_norm<LayerNormForward, gpu::layer_norm_forward>,
                   gpu::launch_layer_norm<LayerNormBackward, gpu::layer_norm_backward>>::register_in(m);
}

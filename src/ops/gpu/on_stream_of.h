// Calls a launcher of a gpu.cu file on a tensor's device and current stream.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace megalith::ops::gpu {

template <auto* kLauncher, typename Arguments>
void on_stream_of(const Arguments& arguments, const at::Tensor& x) {
  const c10::DeviceGuard on_device(x.device());
  kLauncher(arguments, at::accelerator::getCurrentStream(x.device().index()).native_handle());
}

}  // namespace megalith::ops::gpu

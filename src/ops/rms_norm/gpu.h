// The GPU kernels of rms_norm: pointers on the device, and the stream as its native handle.
#pragma once

#include "ops/rms_norm/kernel.h"

namespace megalith::ops::gpu {

void rms_norm_forward(const RmsNormForward& a, void* stream);
void rms_norm_backward(const RmsNormBackward& a, void* stream);

}  // namespace megalith::ops::gpu

// The GPU kernels of layer_norm: pointers on the device, and the stream as its native handle.
#pragma once

#include "ops/layer_norm/kernel.h"

namespace megalith::ops::gpu {

void layer_norm_forward(const LayerNormForward& a, void* stream);
void layer_norm_backward(const LayerNormBackward& a, void* stream);

}  // namespace megalith::ops::gpu

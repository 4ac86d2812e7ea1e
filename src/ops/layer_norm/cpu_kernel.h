// The CPU kernels of layer_norm.
#pragma once

#include "ops/cpu/capability.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops::cpu {

MEGALITH_DECLARE_CPU_KERNEL(layer_norm_forward, (const LayerNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(layer_norm_backward, (const LayerNormBackward& a));

}  // namespace megalith::ops::cpu

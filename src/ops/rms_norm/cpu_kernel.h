// The CPU kernels of rms_norm.
#pragma once

#include "ops/cpu/capability.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops::cpu {

MEGALITH_DECLARE_CPU_KERNEL(rms_norm_forward, (const RmsNormForward& a));
MEGALITH_DECLARE_CPU_KERNEL(rms_norm_backward, (const RmsNormBackward& a));

}  // namespace megalith::ops::cpu

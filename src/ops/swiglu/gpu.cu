// One memory-bound pass.
#include "ops/gpu/gated_activation.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops::gpu {

void swiglu(const SwigluForward& a, void* stream) {
  launch_gated_activation<Silu>("swiglu", a.dtype, a.rows, a.columns, a.gate_up, a.y, a.amax, stream);
}

void swiglu_backward(const SwigluBackward& a, void* stream) {
  launch_gated_activation_backward<Silu>("swiglu_backward", a.dtype, a.rows, a.columns, a.dy, a.gate_up, a.dgate_up,
                                         stream);
}

}  // namespace megalith::ops::gpu

// Registers rotary for the CPU and for the meta device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops::cpu {
namespace {

at::Tensor empty_rotated(const at::Tensor& x, const at::Tensor&, const at::Tensor&, bool) {
  return at::empty(x.sizes(), x.options());
}

at::Tensor turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                bool turns_back) {
  at::Tensor y = empty_rotated(x, cos, sin, is_interleaved);
  MEGALITH_CPU_KERNEL(rotary)
  ({.dtype = to_dtype(x.scalar_type()),
    .batch = x.size(0),
    .sequence = x.size(1),
    .heads = x.size(2),
    .channels = x.size(3),
    .half = cos.size(2),
    .x = x.const_data_ptr(),
    .batch_stride = x.stride(0),
    .sequence_stride = x.stride(1),
    .head_stride = x.stride(2),
    .cos = cos.const_data_ptr(),
    .sin = sin.const_data_ptr(),
    .angle_batch_stride = cos.size(0) == 1 ? 0 : cos.stride(0),
    .is_interleaved = is_interleaved,
    .turns_back = turns_back,
    .y = y.mutable_data_ptr()});
  return y;
}

at::Tensor rotary_forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved) {
  return turn(x, cos, sin, is_interleaved, false);
}

at::Tensor rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved) {
  return turn(dy, cos, sin, is_interleaved, true);
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  m.impl("rotary", TORCH_FN(megalith::ops::cpu::rotary_forward));
  m.impl("rotary_backward", TORCH_FN(megalith::ops::cpu::rotary_backward));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  m.impl("rotary", TORCH_FN(megalith::ops::cpu::empty_rotated));
  m.impl("rotary_backward", TORCH_FN(megalith::ops::cpu::empty_rotated));
}

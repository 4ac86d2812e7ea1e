#include "ops/rotary/rotary.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_rotary(const char* op, const char* name, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_floating(op, {name, x});
  check_rank(op, {name, x}, 4);
  if (x.size(3) > 1 && x.stride(3) != 1) {
    throw UserError(fmt::format("{}: the last dim of {} has stride {}, but must be contiguous", op, name, x.stride(3)));
  }
  check_rank(op, {"cos", cos}, 3);
  const int64_t angle_batch = cos.size(0) == 1 ? 1 : x.size(0);
  const at::ScalarType wide = wide_dtype(x.scalar_type());
  check_dense(op, {"cos", cos}, {angle_batch, x.size(1), cos.size(2)}, wide, {name, x});
  check_dense(op, {"sin", sin}, cos.sizes(), wide, {name, x});
  if (2 * cos.size(2) > x.size(3)) {
    throw UserError(fmt::format("{}: cos has {} angles a position, but {} channels hold at most {}", op, cos.size(2),
                                x.size(3), x.size(3) / 2));
  }
}

Tensor empty_rotary(const Tensor& x, const Tensor& /*cos*/, const Tensor& /*sin*/, bool /*is_interleaved*/) {
  return at::empty(x.sizes(), x.options());
}

template <bool kTurnsBack>
Tensor rotary_on_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_interleaved) {
  Tensor y = empty_rotary(x, cos, sin, is_interleaved);
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
    .turns_back = kTurnsBack,
    .y = y.mutable_data_ptr()});
  return y;
}

constexpr RotaryTable kRotaryCpu{.forward = rotary_on_cpu<false>, .backward = rotary_on_cpu<true>};
constexpr RotaryTable kRotaryMeta{.forward = empty_rotary, .backward = empty_rotary};

}  // namespace

constexpr Operator<RotaryTable> kRotary{
    .name = "rotary", .reference = &kRotaryReference, .cpu = &kRotaryCpu, .meta = &kRotaryMeta};

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_interleaved, Kernels kernels) {
  check_rotary("rotary", "x", x, cos, sin);
  return kRotary.run("rotary", &RotaryTable::forward, kernels, x, cos, sin, is_interleaved);
}

Tensor rotary_backward(const Tensor& dy, const Tensor& cos, const Tensor& sin, bool is_interleaved, Kernels kernels) {
  check_rotary("rotary_backward", "dy", dy, cos, sin);
  return kRotary.run("rotary_backward", &RotaryTable::backward, kernels, dy, cos, sin, is_interleaved);
}

}  // namespace megalith::ops

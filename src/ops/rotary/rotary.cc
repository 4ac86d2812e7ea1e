#include "ops/rotary/rotary.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_channels(const char* op, const Argument& x) {
  if (x.tensor.size(3) <= 1 || x.tensor.stride(3) == 1) return;
  throw UserError(
      fmt::format("{}: the last dim of {} has stride {}, but must be contiguous", op, x.name, x.tensor.stride(3)));
}

void check_rotary(const char* op, const char* name, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_floating(op, {name, x});
  check_rank(op, {name, x}, 4);
  check_channels(op, {name, x});
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

HeadStrides head_strides_of(const Tensor& x) {
  return {.batch = x.stride(0), .sequence = x.stride(1), .head = x.stride(2)};
}

using RotaryLaunch = void (*)(const RotaryTurn&, const Tensor& x);

template <RotaryLaunch kLaunch>
void turn_into(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_interleaved, bool turns_back,
               const Tensor& y) {
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .batch = x.size(0),
           .sequence = x.size(1),
           .heads = x.size(2),
           .channels = x.size(3),
           .half = cos.size(2),
           .x = x.const_data_ptr(),
           .x_strides = head_strides_of(x),
           .cos = cos.const_data_ptr(),
           .sin = sin.const_data_ptr(),
           .angle_batch_stride = cos.size(0) == 1 ? 0 : cos.stride(0),
           .is_interleaved = is_interleaved,
           .turns_back = turns_back,
           .y = y.mutable_data_ptr(),
           .y_strides = head_strides_of(y)},
          x);
}

template <RotaryLaunch kLaunch>
Tensor rotary_by(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_interleaved) {
  Tensor y = empty_rotary(x, cos, sin, is_interleaved);
  turn_into<kLaunch>(x, cos, sin, is_interleaved, /*turns_back=*/false, y);
  return y;
}

template <RotaryLaunch kLaunch>
void rotary_backward_by(const Tensor& dy, const Tensor& cos, const Tensor& sin, bool is_interleaved, const Tensor& dx) {
  turn_into<kLaunch>(dy, cos, sin, is_interleaved, /*turns_back=*/true, dx);
}

void run_rotary(const RotaryTurn& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(rotary)(a); }

constexpr RotaryTable kRotaryCpu{.forward = rotary_by<run_rotary>, .backward = rotary_backward_by<run_rotary>};
constexpr RotaryTable kRotaryMeta{.forward = empty_rotary,
                                  .backward = [](const Tensor&, const Tensor&, const Tensor&, bool, const Tensor&) {}};
#ifdef MEGALITH_GPU_KERNELS
constexpr RotaryTable kRotaryGpu{.forward = rotary_by<gpu::on_stream_of<&gpu::rotary, RotaryTurn>>,
                                 .backward = rotary_backward_by<gpu::on_stream_of<&gpu::rotary, RotaryTurn>>};
#endif

}  // namespace

constexpr Operator<RotaryTable> kRotary{.name = "rotary",
                                        .reference = &kRotaryReference,
                                        .cpu = &kRotaryCpu,
                                        .meta = &kRotaryMeta,
#ifdef MEGALITH_GPU_KERNELS
                                        .gpu = &kRotaryGpu
#endif
};

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_interleaved, Kernels kernels) {
  check_rotary("rotary", "x", x, cos, sin);
  return kRotary.run("rotary", &RotaryTable::forward, kernels, x, cos, sin, is_interleaved);
}

Tensor rotary_backward(const Tensor& dy, const Tensor& cos, const Tensor& sin, bool is_interleaved, Kernels kernels) {
  check_rotary("rotary_backward", "dy", dy, cos, sin);
  Tensor dx = empty_rotary(dy, cos, sin, is_interleaved);
  kRotary.run("rotary_backward", &RotaryTable::backward, kernels, dy, cos, sin, is_interleaved, dx);
  return dx;
}

void rotary_backward_into(const Tensor& dy, const Tensor& cos, const Tensor& sin, bool is_interleaved, const Tensor& dx,
                          Kernels kernels) {
  constexpr const char* kOp = "rotary_backward_into";
  check_rotary(kOp, "dy", dy, cos, sin);
  check_dtype(kOp, {"dx", dx}, dy.scalar_type());
  check_shape(kOp, {"dx", dx}, dy.sizes());
  check_devices(kOp, {{"dy", dy}, {"dx", dx}});
  check_channels(kOp, {"dx", dx});
  kRotary.run("rotary_backward", &RotaryTable::backward, kernels, dy, cos, sin, is_interleaved, dx);
}

}  // namespace megalith::ops

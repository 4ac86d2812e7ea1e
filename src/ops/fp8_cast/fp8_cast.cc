#include "ops/fp8_cast/fp8_cast.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/fp8_cast/kernel.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

using at::Tensor;

constexpr int kBlockShift = 7;  // blocks of 128

int64_t blocks_of_scales(int64_t size) { return (size + (1 << kBlockShift) - 1) >> kBlockShift; }

EightBits eight_bits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return EightBits::kE4m3fn;
    case at::kFloat8_e5m2:
      return EightBits::kE5m2;
    case at::kFloat8_e4m3fnuz:
      return EightBits::kE4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return EightBits::kE5m2fnuz;
    default:
      throw UserError(
          fmt::format("fp8_cast: dtype is {}, but must be one of the four of eight bits", c10::toString(dtype)),
          "use Float8_e4m3fn or Float8_e5m2, or their fnuz forms on gfx942");
  }
}

int shift_of(int64_t count, int64_t size) {
  if (count == 1) return kNoBlocks;
  return count == size ? 0 : kBlockShift;
}

bool are_scales_of(int64_t count, int64_t size) {
  return count == 1 || count == size || count == blocks_of_scales(size);
}

void check_scale(const Tensor& x, const Tensor& scale) {
  check_dtype("fp8_cast", {"scale", scale}, wide_dtype(x.scalar_type()));
  check_contiguous("fp8_cast", {"scale", scale});
  check_devices("fp8_cast", {{"x", x}, {"scale", scale}});
  if (scale.dim() == 0) return;
  if (scale.dim() == 2 && are_scales_of(scale.size(0), x.size(0)) && are_scales_of(scale.size(1), x.size(1))) return;
  throw UserError(
      fmt::format("fp8_cast: scale has shape ({}), but must be one number, or (R, C) with R of 1, {} or {} and "
                  "C of 1, {} or {}",
                  fmt::join(scale.sizes(), ", "), blocks_of_scales(x.size(0)), x.size(0), blocks_of_scales(x.size(1)),
                  x.size(1)),
      "give a scale for all, for each row or column, or for each 128 of them");
}

Fp8Cast empty_fp8_cast(const Tensor& x, const Tensor& /*scale*/, at::ScalarType dtype, bool with_transposed,
                       const Tensor& /*amax*/) {
  const auto options = x.options().dtype(dtype);
  return {at::empty(x.sizes(), options), with_transposed ? at::empty({x.size(1), x.size(0)}, options) : Tensor()};
}

Fp8CastCall make_call(const Tensor& x, const Tensor& scale, at::ScalarType dtype, const Fp8Cast& result, void* amax) {
  const bool has_blocks = scale.dim() == 2;
  return {.dtype = to_dtype(x.scalar_type()),
          .format = eight_bits_of(dtype),
          .rows = x.size(0),
          .columns = x.size(1),
          .x = x.const_data_ptr(),
          .x_stride = x.stride(0),
          .scales = scale.const_data_ptr(),
          .row_shift = has_blocks ? shift_of(scale.size(0), x.size(0)) : kNoBlocks,
          .column_shift = has_blocks ? shift_of(scale.size(1), x.size(1)) : kNoBlocks,
          .scales_of_row = has_blocks ? scale.size(1) : 1,
          .values = static_cast<uint8_t*>(result.values.mutable_data_ptr()),
          .transposed = static_cast<uint8_t*>(mutable_data_or_null(result.transposed)),
          .amax = amax};
}

Fp8Cast fp8_cast_on_cpu(const Tensor& x, const Tensor& scale, at::ScalarType dtype, bool with_transposed,
                        const Tensor& amax) {
  const Fp8Cast result = empty_fp8_cast(x, scale, dtype, with_transposed, amax);
  if (x.numel() == 0) return result;
  Tensor of_tasks;
  if (amax.defined()) of_tasks = at::empty({(x.size(0) + cpu::kFp8TaskRows - 1) / cpu::kFp8TaskRows}, amax.options());
  MEGALITH_CPU_KERNEL(fp8_cast)(make_call(x, scale, dtype, result, mutable_data_or_null(of_tasks)));
  raise_amax(amax, of_tasks);
  return result;
}

constexpr Fp8CastTable kFp8CastCpu{.cast = fp8_cast_on_cpu};
constexpr Fp8CastTable kFp8CastMeta{.cast = empty_fp8_cast};
#ifdef MEGALITH_GPU_KERNELS
Fp8Cast fp8_cast_on_gpu(const Tensor& x, const Tensor& scale, at::ScalarType dtype, bool with_transposed,
                        const Tensor& amax) {
  const Fp8Cast result = empty_fp8_cast(x, scale, dtype, with_transposed, amax);
  gpu::on_stream_of<&gpu::fp8_cast>(make_call(x, scale, dtype, result, mutable_data_or_null(amax)), x);
  return result;
}
constexpr Fp8CastTable kFp8CastGpu{.cast = fp8_cast_on_gpu};
#endif

}  // namespace

constexpr Operator<Fp8CastTable> kFp8Cast{.name = "fp8_cast",
                                          .reference = &kFp8CastReference,
                                          .cpu = &kFp8CastCpu,
                                          .meta = &kFp8CastMeta,
#ifdef MEGALITH_GPU_KERNELS
                                          .gpu = &kFp8CastGpu
#endif
};

double largest_of_fp8(at::ScalarType dtype) { return layout_of(eight_bits_of(dtype)).largest; }

Fp8Cast fp8_cast(const Tensor& x, const Tensor& scale, at::ScalarType dtype, bool with_transposed, const Tensor& amax,
                 Kernels kernels) {
  check_floating("fp8_cast", {"x", x});
  check_rows("fp8_cast", {"x", x});
  check_scale(x, scale);
  (void)eight_bits_of(dtype);
  check_amax("fp8_cast", amax, x);
  return kFp8Cast.run("fp8_cast", &Fp8CastTable::cast, kernels, x, scale, dtype, with_transposed, amax);
}

}  // namespace megalith::ops

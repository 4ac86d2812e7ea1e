#include "ops/nf4/nf4.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/nf4/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

static_assert(kNf4Block == 1 << kLog2Nf4Block && kNf4ScaleGroup == 1 << kLog2Nf4ScaleGroup);

constexpr int64_t kNf4Levels = 256;

Nf4Blocks empty_nf4_blocks(const Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1);
  return {at::empty({rows, nf4_bytes_of_row(columns)}, x.options().dtype(at::kByte)),
          at::empty({rows, nf4_blocks_of_row(columns)}, x.options().dtype(at::kFloat))};
}

Nf4Blocks nf4_quantise_on_cpu(const Tensor& x) {
  const Nf4Blocks blocks = empty_nf4_blocks(x);
  MEGALITH_CPU_KERNEL(nf4_quantise)({.dtype = to_dtype(x.scalar_type()),
                                     .rows = x.size(0),
                                     .columns = x.size(1),
                                     .x = x.const_data_ptr(),
                                     .x_stride = x.stride(0),
                                     .codes = blocks.codes.mutable_data_ptr<uint8_t>(),
                                     .scales = blocks.scales.mutable_data_ptr<float>()});
  return blocks;
}

Tensor empty_nf4_values(const Tensor& codes, const Nf4Matrix& /*matrix*/, int64_t columns, at::ScalarType dtype) {
  return at::empty({codes.size(0), columns}, codes.options().dtype(dtype));
}

Nf4DequantiseCall make_nf4_call(const Nf4Matrix& matrix, const Tensor& y) {
  return {.dtype = to_dtype(y.scalar_type()),
          .rows = y.size(0),
          .columns = y.size(1),
          .codes = matrix.codes.const_data_ptr<uint8_t>(),
          .scales = matrix.scales.const_data_ptr<uint8_t>(),
          .first_blocks = matrix.first_blocks.const_data_ptr<int32_t>(),
          .groups = matrix.groups.const_data_ptr<float>(),
          .levels = matrix.levels.const_data_ptr<float>(),
          .y = y.mutable_data_ptr()};
}

Tensor nf4_dequantise_on_cpu(const Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype) {
  Tensor y = empty_nf4_values(codes, matrix, columns, dtype);
  MEGALITH_CPU_KERNEL(nf4_dequantise)(make_nf4_call(matrix, y));
  return y;
}

constexpr Nf4Table kNf4Cpu{.quantise = nf4_quantise_on_cpu, .dequantise = nf4_dequantise_on_cpu};
constexpr Nf4Table kNf4Meta{.quantise = empty_nf4_blocks, .dequantise = empty_nf4_values};

#ifdef MEGALITH_GPU_KERNELS
Tensor nf4_dequantise_on_gpu(const Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype) {
  Tensor y = empty_nf4_values(codes, matrix, columns, dtype);
  gpu::on_stream_of<&gpu::nf4_dequantise>(make_nf4_call(matrix, y), codes);
  return y;
}

// The reference quantises weights, once.
constexpr Nf4Table kNf4Gpu{.quantise = nullptr, .dequantise = nf4_dequantise_on_gpu};
#endif

}  // namespace

constexpr Operator<Nf4Table> kNf4{.name = "nf4",
                                  .reference = &kNf4Reference,
                                  .cpu = &kNf4Cpu,
                                  .meta = &kNf4Meta,
#ifdef MEGALITH_GPU_KERNELS
                                  .gpu = &kNf4Gpu
#endif
};

Nf4Blocks nf4_quantise(const Tensor& x, Kernels kernels) {
  check_floating("nf4_quantise", {"x", x});
  check_rows("nf4_quantise", {"x", x});
  return kNf4.run("nf4_quantise", &Nf4Table::quantise, kernels, x);
}

Tensor nf4_dequantise(const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype, Kernels kernels) {
  constexpr const char* kName = "nf4_dequantise";
  const Argument codes{"codes", matrix.codes};
  check_rank(kName, codes, 2);
  const int64_t rows = matrix.codes.size(0);
  check_dtype(kName, codes, at::kByte);
  check_shape(kName, codes, {rows, nf4_bytes_of_row(columns)});
  check_contiguous(kName, codes);
  check_dense(kName, {"scales", matrix.scales}, {rows, nf4_blocks_of_row(columns)}, at::kByte, codes);
  check_dense(kName, {"first_blocks", matrix.first_blocks}, {rows}, at::kInt, codes);
  check_rank(kName, {"groups", matrix.groups}, 2);
  check_dense(kName, {"groups", matrix.groups}, {matrix.groups.size(0), 2}, at::kFloat, codes);
  check_dense(kName, {"levels", matrix.levels}, {kNf4Levels}, at::kFloat, codes);
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw UserError(fmt::format("nf4_dequantise: dtype is {}, but must be bf16, fp16, fp32 or fp64",
                                c10::toString(dtype)));
  }
  return kNf4.run(kName, &Nf4Table::dequantise, kernels, matrix.codes, matrix, columns, dtype);
}

}  // namespace megalith::ops

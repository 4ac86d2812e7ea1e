// Also the only form of the scales' codes.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "ops/arguments.h"
#include "ops/nf4/kernel.h"
#include "ops/nf4/nf4.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

constexpr int64_t kReferenceZeroCode = 7;

Tensor nf4_table_on(at::Device device) {
  const Nf4Values values;
  return at::tensor(at::ArrayRef<float>(values.of, 16), at::kFloat).to(device);
}

Tensor boundaries_of(const Tensor& ascending) {
  const int64_t count = ascending.size(0) - 1;
  return (ascending.narrow(0, 0, count) + ascending.narrow(0, 1, count)) / 2;
}

Nf4Blocks nf4_quantise(const Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1), blocks = nf4_blocks_of_row(columns);
  const Tensor padded = at::constant_pad_nd(x.to(at::kFloat), {0, blocks * kNf4Block - columns});
  const Tensor by_block = padded.view({rows, blocks, kNf4Block});
  const Tensor scales = by_block.abs().amax(-1);
  const Tensor scaled = by_block * scales.reciprocal().unsqueeze(-1);
  const Tensor found = at::bucketize(scaled.contiguous(), boundaries_of(nf4_table_on(x.device())), /*out_int32=*/true);
  const Tensor codes = found.masked_fill(scales.eq(0).unsqueeze(-1), kReferenceZeroCode).view({rows, -1}).to(at::kByte);
  const Tensor even = codes.slice(1, 0, std::nullopt, 2), odd = codes.slice(1, 1, std::nullopt, 2);
  const Tensor bytes = even.bitwise_left_shift(4).bitwise_or(odd);
  return {bytes.narrow(1, 0, nf4_bytes_of_row(columns)).contiguous(), scales};
}

Tensor nf4_dequantise(const Tensor& codes, const Nf4Matrix& matrix, int64_t columns, at::ScalarType dtype) {
  const auto longs = [](const Tensor& x) { return x.to(at::kLong); };
  const Tensor nibbles = at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, -1).flatten(1);
  const Tensor values =
      nf4_table_on(codes.device()).index({longs(nibbles.narrow(1, 0, columns))}).to(wide_dtype(dtype));
  const Tensor block = at::arange(matrix.scales.size(1), matrix.first_blocks.options());
  const Tensor group =
      longs(matrix.first_blocks.unsqueeze(1) + block).bitwise_right_shift(kLog2Nf4ScaleGroup);
  const Tensor factors = matrix.groups.select(1, 0).index({group}), means = matrix.groups.select(1, 1).index({group});
  const Tensor levels = matrix.levels.to(at::kDouble).index({longs(matrix.scales)});
  const Tensor scales = (levels * factors + means).to(at::kFloat);
  return (values * scales.repeat_interleave(kNf4Block, 1).narrow(1, 0, columns)).to(dtype);
}

}  // namespace
}  // namespace reference

constexpr Nf4Table kNf4Reference{.quantise = reference::nf4_quantise, .dequantise = reference::nf4_dequantise};

at::Tensor nf4_scale_levels() {
  constexpr int kRanges = 7;
  std::vector<at::Tensor> levels = {at::zeros({1}, at::kDouble), at::ones({1}, at::kDouble)};
  for (int range = 0; range < kRanges; ++range) {
    // fp32, multiplied in fp64: where bitsandbytes rounds.
    const at::Tensor edges = at::linspace(0.1, 1, (1 << range) + 1, at::kFloat);
    const at::Tensor middles = (edges.narrow(0, 0, 1 << range) + edges.narrow(0, 1, 1 << range)) / 2.0;
    const at::Tensor side = middles.to(at::kDouble) * std::pow(10.0, range + 1 - kRanges);
    levels.push_back(side);
    levels.push_back(-side);
  }
  return std::get<0>(at::cat(levels).sort()).to(at::kFloat);
}

Nf4Scales nf4_quantise_scales(const at::Tensor& scales) {
  check_dtype("nf4_quantise_scales", {"scales", scales}, at::kFloat);
  check_rank("nf4_quantise_scales", {"scales", scales}, 1);
  const int64_t count = scales.size(0), groups = (count + kNf4ScaleGroup - 1) / kNf4ScaleGroup;
  if (count == 0) return {scales.to(at::kByte), at::zeros({0, 2}, scales.options())};
  // fp64: the number of threads changes no bit
  const at::Tensor mean = scales.mean(at::kDouble).to(at::kFloat);
  const at::Tensor centred =
      at::constant_pad_nd(scales - mean, {0, groups * kNf4ScaleGroup - count}).view({groups, kNf4ScaleGroup});
  const at::Tensor factors = centred.abs().amax(1);
  // Equal scales have factor 0, for which 0's code serves.
  const at::Tensor divisors = factors.masked_fill(factors.eq(0), 1);
  const at::Tensor levels = nf4_scale_levels().to(scales.device());
  const at::Tensor found =
      at::bucketize(centred.div(divisors.unsqueeze(1)).contiguous(), reference::boundaries_of(levels), true);
  return {found.to(at::kByte).view({-1}).narrow(0, 0, count),
          at::stack({factors, mean.expand_as(factors)}, 1).contiguous()};
}

}  // namespace megalith::ops

// Products of operands in microscaling formats: blocks of 32 numbers along the sum that share a power of two (E8M0).
//
//   values = 2^s round(x / 2^s)    round: to even, then clamped; mxfp8: E4M3 (hybrid: gradients E5M2), mxfp4: E2M1
//   s      = floor(log2(amax)) - log2 of the format's largest power of two, where amax is first rounded, half up, to
//            the format's digits; a block with a number that is not finite stays as it is
//
// A weight's blocks are squares of 32 x 32, so both of its products read the same numbers. With mxfp4 the operands of
// the weight's gradient are turned by a Hadamard matrix of 16 along the tokens first, which the product undoes.
//
// Values keep the model's dtype, which holds them exactly, and are multiplied in it: the numbers of gfx950's products
// up to the order of sums, without their speed. Source: OCP Microscaling Formats 1.0; AMD-AGI/Primus-Turbo
// csrc/kernels/quantization/quantization_mxfp{4,8}.cu, primus_turbo/pytorch/ops/gemm_fp{4,8}.py.
#pragma once

#include "nn/matmul_recipe.h"

namespace megalith {

// Numbers with `digits` after the point, exponents from `least` on, and `largest`.
struct MxFormat {
  int64_t digits, least, largest_power;
  double largest;
};
inline constexpr MxFormat kMxE4m3 = {3, -6, 8, 448}, kMxE5m2 = {2, -14, 15, 57344}, kMxE2m1 = {1, 0, 2, 6};
inline constexpr int64_t kMxBlock = 32, kHadamardSize = 16;

// x (rows, columns) -> the same, rounded; incomplete blocks count as filled with zeros.
at::Tensor mx_along_rows(const at::Tensor& x, const MxFormat& format);
at::Tensor mx_in_squares(const at::Tensor& x, const MxFormat& format);
// Down columns, perhaps turned: rows are then filled up to a multiple of kHadamardSize.
at::Tensor mx_down_columns(const at::Tensor& x, const MxFormat& format, bool is_turned);

class MxRecipe : public MatmulRecipe {
 public:
  struct Settings {
    MxFormat format = kMxE4m3, of_gradients = kMxE4m3;
    bool turns_wgrad = false, rounds_wgrad = true;
    int64_t num_plain_first = 0, num_plain_last = 0;
  };
  MxRecipe(const Settings& settings, Kernels kernels) : MatmulRecipe(kernels), settings_(settings) {}

  std::shared_ptr<const MatmulRecipe> for_chunk() const override;
  bool leaves_plain(int64_t layer, int64_t num_layers) const override;
  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override;
  // Rounds both here: ranks' rows are gathered by then, so that blocks are one rank's.
  void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const override;

 private:
  Settings settings_;
};

}  // namespace megalith

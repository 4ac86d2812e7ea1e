// Products whose operands are rounded to eight bits, each with a scale of its own that follows from its largest
// absolute value at that moment (current scaling, "tensorwise"):
//
//   scale  = max_fp8 / amax          1 where amax is 0 or infinite; the largest fp32 where the quotient is infinite
//   values = fp8(clamp(x * scale))   max_fp8: 448 for E4M3, 57344 for E5M2
//
// Inputs and weights are E4M3; gradients are E5M2 (hybrid) or E4M3. The products multiply what the eight bits stand
// for, values / scale, and add in fp32 (fp64 for fp64 models), on any device; a GPU's own eight-bit products are not
// used yet. What is kept of an input is its eight-bit copy: a byte an element.
//
// amax is taken over the whole tensor wherever its parts lie: over tp for the parts that tp cuts, and over cp, whose
// ranks have parts of the same sequences. So a layout rounds as one rank does. Each expert has scales of its own, over
// the rows that reach this rank.
//
// Source: Micikevicius et al. 2022, arXiv:2209.05433 (formats); current scaling as Transformer Engine has it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/matmul_recipe.h"

namespace megalith {

enum class Fp8Format {
  kHybrid,  // E4M3, gradients E5M2
  kE4m3,
};

// Megatron-LM's names.
struct Fp8Options {
  std::optional<std::string> fp8_format;  // "hybrid", "e4m3"; unset: no eight-bit products
  std::string fp8_recipe = "delayed";     // of those that Megatron-LM has, tensorwise is there

  void visit(OptionVisitor& v);
  bool is_on() const { return fp8_format.has_value(); }
};
std::vector<UserError> check_fp8_options(const Fp8Options& options);

class Fp8Recipe : public MatmulRecipe {
 public:
  Fp8Recipe(Fp8Format format, Kernels kernels) : MatmulRecipe(kernels), format_(format) {}

  Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const override;
  KeptOperand keep(const Activation& x, const Operand& taken, const OperandScope& scope) const override;

  at::Tensor forward(const Operand& x, const Operand& w, const at::Tensor& bias) const override;
  at::Tensor dgrad(const Operand& dy, const Operand& w) const override;
  void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const override;
  at::Tensor grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const override;
  at::Tensor grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const override;
  void grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                      bool accumulate) const override;

 private:
  Fp8Format format_;
};

// What the options ask for; null: the plain recipe.
std::shared_ptr<const MatmulRecipe> make_recipe(const Fp8Options& options, Kernels kernels);

}  // namespace megalith

// Products of operands rounded to eight bits.
//
//   values = fp8(clamp(x * scale))   max_fp8: 448 for E4M3 (240 on gfx942, whose numbers are fnuz), 57344 for E5M2
//
// Inputs and weights are E4M3; gradients E5M2 (hybrid) or E4M3. Without a library's products (fp8_products.h), as for
// experts, whose row counts only the device knows, values / scale are multiplied wide. Inputs are kept in eight bits;
// weights are rounded once a step.
//
//   tensorwise  max_fp8 / amax of the current tensor; 1 if amax is 0 or infinite
//   delayed     from past microbatches' amaxes (fp8_memory.h)
//   blockwise   per 128 elements, or 128 x 128 of a weight (fp8_blocks.h)
//
// amax covers ranks with parts of a tensor (tensorwise: tp if cut, and cp; delayed: tp, cp and dp), so a layout rounds
// as one rank does; blocks do if cuts are multiples of 128. Experts have their own scales, over this rank's rows
// (delayed: any rank's). Sources: arXiv:2209.05433 (formats); Transformer Engine and its ROCm fork (recipes).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/fp8_memory.h"
#include "nn/matmul_recipe.h"
#include "ops/gpu/blas.h"

namespace megalith {

enum class Fp8Format {
  kHybrid,  // E4M3, gradients E5M2
  kE4m3,
};

enum class Fp8Scaling { kTensorwise, kDelayed, kBlockwise };

// Megatron-LM's names.
struct Fp8Options {
  std::optional<std::string> fp8_format;  // "hybrid", "e4m3"; unset: none
  std::string fp8_recipe = "delayed";
  std::optional<std::string> fp4_format;  // "e2m1"; unset: none
  std::string fp4_recipe = "nvfp4";
  int64_t fp8_margin = 0;
  int64_t fp8_amax_history_len = 1;
  std::string fp8_amax_compute_algo = "most_recent";
  bool fp8_wgrad = true;
  bool keep_fp8_weight_transpose_cache = true;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1, num_layers_at_end_in_bf16 = 1;

  void visit(OptionVisitor& v);
  bool is_on() const { return fp8_format || fp4_format; }
  // Blocks of 32 (nn/mx_recipe.h), which no library is asked to multiply.
  bool is_microscaled() const { return fp4_format || (fp8_format && fp8_recipe == "mxfp8"); }
  std::string words() const;  // "fp8_format hybrid", if on
};
struct MxSizes {
  bool has_experts = false, is_of_pictures = false;
  std::vector<std::pair<const char*, int64_t>> widths;  // of a rank's products, by their names
};
// num_layers  without prediction modules
std::vector<UserError> check_fp8_options(const Fp8Options& options, int64_t num_layers, const MxSizes& sizes);
// Options without effect.
std::vector<std::string> fp8_notes(const Fp8Options& options);
struct Fp8Sizes {
  int64_t hidden = 0, ffn_of_rank = 0, tokens = 0;  // a microbatch's
  int64_t experts = 0;
};
// Products left to the reference.
std::vector<std::string> fp8_product_notes(const Fp8Options& options, const ops::gpu::Fp8Products& library,
                                           const Fp8Sizes& sizes);
// "hybrid FP8, delayed (history 16, max, margin 0)" or ""
std::string fp8_text(const Fp8Options& options, int64_t num_layers);

struct Fp8Settings {
  Fp8Format format = Fp8Format::kHybrid;
  Fp8Scaling scaling = Fp8Scaling::kTensorwise;
  DelayedScaling delayed = {};
  bool rounds_wgrad = true;              // the weight's product too
  bool keeps_weights = true;             // in eight bits, until the step's end
  bool keeps_transposed_weights = true;  // too, if the library reads both
  int64_t num_plain_first = 0, num_plain_last = 0;
};

class Fp8Recipe : public MatmulRecipe {
 public:
  Fp8Recipe(const Fp8Settings& settings, Kernels kernels);
  Fp8Recipe(Fp8Format format, Kernels kernels) : Fp8Recipe(Fp8Settings{.format = format}, kernels) {}

  std::shared_ptr<const MatmulRecipe> for_chunk() const override;
  int64_t add_layer(const RecipeLayer& layer) const override;
  std::shared_ptr<RecipeMemory> memory() const override { return memory_; }
  bool leaves_plain(int64_t layer, int64_t num_layers) const override;

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
  at::ScalarType eight_bits_of(OperandRole role, at::Device device) const;
  bool is_blockwise() const { return settings_.scaling == Fp8Scaling::kBlockwise; }
  at::Tensor find_scale(const at::Tensor& tensor, OperandRole role, const OperandScope& scope, at::Tensor* amax) const;
  Operand take_weight(const at::Tensor& weight, const OperandScope& scope) const;
  // recorded: the amax to record at each use
  Operand cast_and_record(const at::Tensor& tensor, OperandRole role, const OperandScope& scope, bool with_transposed,
                          at::Tensor* recorded = nullptr) const;
  ops::gpu::Fp8Products library_on(at::Device device) const;
  bool is_turned(const at::Tensor& tensor, const OperandScope& scope) const;

  Fp8Settings settings_;
  std::shared_ptr<Fp8Memory> memory_;
};

// Null: the plain recipe.
std::shared_ptr<const MatmulRecipe> make_recipe(const Fp8Options& options, Kernels kernels, bool keeps_weights = true);

}  // namespace megalith

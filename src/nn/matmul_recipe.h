// How linear layers multiply, and in which form they keep operands.
//
//   y  = x w^T + b        forward()
//   dx = dy w             dgrad()
//   dw += dy^T x          wgrad_()     into the Parameter's wider buffer
//
// Inputs, weights and incoming gradients become operands first: unchanged with the plain recipe, in eight bits with
// fp8_recipe.h. Router and head are always plain.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "nn/kept.h"
#include "ops/kernels.h"

namespace megalith {

class Group;
class RecipeMemory;

enum class OperandRole { kInput, kWeight, kGradient };

struct Operand {
  at::Tensor values;
  // Factor before rounding: 0-d, per expert (e), or per block (nn/fp8_blocks.h); undefined: 1.
  at::Tensor scale = {};
  at::ScalarType dtype = values.scalar_type();  // of the unrounded tensor and products
  // If defined, for the weight's gradient.
  at::Tensor wgrad_values = {}, wgrad_scale = {};
  int64_t num_parts = 1;  // concatenated ranks' rows, each of which begins new blocks
  // (columns, rows) for libraries that want it: a weight's for dgrad; others' for the weight's gradient, perhaps
  // instead of their values.
  at::Tensor transposed = {};
  at::Tensor factor = {};  // 1 / scale, if computed
};

struct KeptOperand {
  Kept values = {};
  at::Tensor scale = {};
  at::ScalarType dtype = at::kFloat;
  at::Tensor factor = {};
  bool is_transposed = false;  // values are Operand::transposed

  bool is_defined() const { return values.is_defined(); }
  Operand take() {
    at::Tensor there = values.take();
    Operand operand{is_transposed ? at::Tensor() : there, scale, dtype};
    if (is_transposed) operand.transposed = std::move(there);
    operand.factor = factor;
    return operand;
  }
};

struct OperandScope {
  Group* group = nullptr;       // ranks with other parts of the tensor; null: none
  std::string_view label = {};  // for the trace; outlives what is kept
  at::Tensor offsets = {};      // (e + 1), for rows of experts
  int64_t num_experts = 0;      // of a weight (e o, h)
  at::Tensor scale = {};        // if known
  int64_t layer = -1;           // from MatmulRecipe::add_layer()
  // The weight's gradient reads these very rows: transpose at once.
  bool is_for_wgrad = false;
};

struct RecipeLayer {
  std::string name;  // "model.layers.0.self_attn.qkv_proj" in every layout
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t num_weight_elements = 0;
  // The model's, and this rank's; 0: no experts.
  int64_t num_experts = 0, first_expert = 0, num_local_experts = 0;
};

class MatmulRecipe {
 public:
  explicit MatmulRecipe(Kernels kernels) : kernels_(kernels) {}
  virtual ~MatmulRecipe() = default;
  MatmulRecipe(const MatmulRecipe&) = delete;

  virtual std::shared_ptr<const MatmulRecipe> for_chunk() const;
  // Returns OperandScope::layer; -1: remembers nothing.
  virtual int64_t add_layer(const RecipeLayer& /*layer*/) const { return -1; }
  virtual std::shared_ptr<RecipeMemory> memory() const { return nullptr; }
  // Uses the plain recipe.
  virtual bool leaves_plain(int64_t /*layer*/, int64_t /*num_layers*/) const { return false; }

  // tensor (rows, columns). Collective over scope.group.
  virtual Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const;
  // The part of x that the weight's gradient needs, taken as `taken`.
  virtual KeptOperand keep(const Activation& x, const Operand& taken, const OperandScope& scope) const;

  // t tokens, h in, o out; bias (o), in y's precision, may be undefined.
  virtual at::Tensor forward(const Operand& x, const Operand& w, const at::Tensor& bias) const;
  virtual at::Tensor dgrad(const Operand& dy, const Operand& w) const;
  // dw (o, h) wide.
  virtual void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const;

  // x and dy sorted by expert, w (e o, h) (ops/grouped_linear).
  virtual at::Tensor grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const;
  virtual at::Tensor grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const;
  virtual void grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                              bool accumulate) const;

  // db += sum of dy, unrounded.
  void bias_grad_(const at::Tensor& db, const at::Tensor& dy) const;
  Kernels kernels() const { return kernels_; }

 private:
  Kernels kernels_;
};

// Shared.
std::shared_ptr<const MatmulRecipe> plain_recipe(Kernels kernels);

struct LayerContext;
std::shared_ptr<const MatmulRecipe> recipe_of(const LayerContext& context);

}  // namespace megalith

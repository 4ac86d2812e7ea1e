// MatmulRecipe: how linear layers multiply, and in which form they keep operands.
//
//   y  = x w^T + b        forward()
//   dx = dy w             dgrad()
//   dw += dy^T x          wgrad_()     into the Parameter's buffer, which is wider than the operands
//
// Inputs, weights and incoming gradients are taken as operands first. The plain recipe uses the tensors' own dtype;
// fp8_recipe.h rounds operands to eight bits. LayerContext::recipe selects one; the router and the head are always
// plain.
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
  // Low-precision values are the tensor times this, rounded: 0-d, per expert (e), or per block (nn/fp8_blocks.h);
  // undefined: 1.
  at::Tensor scale = {};
  at::ScalarType dtype = values.scalar_type();  // of the tensor and of its products
  // Read instead by the weight's product, which sums over rows, if defined.
  at::Tensor wgrad_values = {}, wgrad_scale = {};
  int64_t num_parts = 1;  // ranks' rows, concatenated: blocks of rows begin anew in each
  // (columns, rows) for libraries that want it: a weight's for dgrad, other operands' for the weight's product, and
  // then wgrad_values, or an input's values, may be absent.
  at::Tensor transposed = {};
  at::Tensor factor = {};  // 1 / scale, for libraries that multiply by it; undefined: not computed
};

struct KeptOperand {
  Kept values = {};
  at::Tensor scale = {};
  at::ScalarType dtype = at::kFloat;
  at::Tensor factor = {};
  bool is_transposed = false;  // the values are Operand::transposed

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
  Group* group = nullptr;       // ranks with the other parts of the tensor; null: it is whole here
  std::string_view label = {};  // for the trace; must outlive what is kept of the operand
  at::Tensor offsets = {};      // (e + 1), for rows of experts with a scale each; undefined: one scale
  int64_t num_experts = 0;      // likewise for weights (e o, h), with equally many rows per expert
  at::Tensor scale = {};        // known already: nothing is computed or exchanged
  int64_t layer = -1;           // as numbered by MatmulRecipe::add_layer()
  // The weight's product reads exactly these rows, so the transpose may be made at once.
  bool is_for_wgrad = false;
};

struct RecipeLayer {
  std::string name;  // the same in every layout: "model.layers.0.self_attn.qkv_proj"
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t num_weight_elements = 0;
  // Experts of the whole model, and those on this rank; 0: a layer without experts.
  int64_t num_experts = 0, first_expert = 0, num_local_experts = 0;
};

class MatmulRecipe {
 public:
  explicit MatmulRecipe(Kernels kernels) : kernels_(kernels) {}
  virtual ~MatmulRecipe() = default;
  MatmulRecipe(const MatmulRecipe&) = delete;

  virtual std::shared_ptr<const MatmulRecipe> for_chunk() const;
  // Registers a layer and returns its number for OperandScope; -1: nothing is remembered.
  virtual int64_t add_layer(const RecipeLayer& /*layer*/) const { return -1; }
  virtual std::shared_ptr<RecipeMemory> memory() const { return nullptr; }
  // True if this layer, of num_layers, uses the plain recipe.
  virtual bool leaves_plain(int64_t /*layer*/, int64_t /*num_layers*/) const { return false; }

  // tensor (rows, columns) as an operand. With a group, collective over it.
  virtual Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const;
  // Keeps what the weight's product needs of an input taken from x.value.
  virtual KeptOperand keep(const Activation& x, const Operand& taken, const OperandScope& scope) const;

  // t tokens, h in, o out; bias (o), added in the precision of y, may be undefined.
  virtual at::Tensor forward(const Operand& x, const Operand& w, const at::Tensor& bias) const;
  virtual at::Tensor dgrad(const Operand& dy, const Operand& w) const;
  // dw (o, h) wide: added to, or overwritten.
  virtual void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const;

  // For experts (ops/grouped_linear): x and dy sorted by expert, w (e o, h).
  virtual at::Tensor grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const;
  virtual at::Tensor grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const;
  virtual void grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                              bool accumulate) const;

  // db += sum over t of dy; never rounded.
  void bias_grad_(const at::Tensor& db, const at::Tensor& dy) const;
  Kernels kernels() const { return kernels_; }

 private:
  Kernels kernels_;
};

// One shared object per choice of kernels.
std::shared_ptr<const MatmulRecipe> plain_recipe(Kernels kernels);

struct LayerContext;
std::shared_ptr<const MatmulRecipe> recipe_of(const LayerContext& context);

}  // namespace megalith

// MatmulRecipe: how the matrix products of linear layers are computed, and in which form their operands are kept.
//
// A layer asks its recipe for everything: it takes the input as an operand, multiplies, keeps what the recipe says of
// the operand, and in backward takes the incoming gradient as an operand for the two products there.
//
//   y  = x w^T + b        forward()
//   dx = dy w             dgrad()
//   dw += dy^T x          wgrad_()     into the Parameter's buffer, which is wider than the operands
//
// The plain recipe multiplies in the tensors' own dtype and keeps them as they are; fp8_recipe.h has those that round
// the operands to eight bits. LayerContext::recipe says which one a model's layers use; the router and the head are
// always plain.
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
class RecipeMemory;  // nn/recipe_memory.h

enum class OperandRole { kInput, kWeight, kGradient };

// A matrix as products read it.
struct Operand {
  at::Tensor values;
  // In low precision, values are the tensor times this, rounded. 0-d; or a number for each expert (e); or one for each
  // block (nn/fp8_blocks.h); undefined: 1.
  at::Tensor scale = {};
  at::ScalarType dtype = values.scalar_type();  // of the tensor, and of what products with it give
  // Where the weight's product, which adds over the rows, reads something else than the others: that, and its scale.
  at::Tensor wgrad_values = {}, wgrad_scale = {};
  int64_t num_parts = 1;  // of as many ranks' rows, one after another: blocks of rows begin anew in each
  // (columns, rows), for libraries that read it so: of a weight what dgrad reads, of others what the weight's product
  // does, and then wgrad_values, or the values of an input, may not be there. Undefined: nobody has made it.
  at::Tensor transposed = {};
  at::Tensor factor = {};  // 1 / scale, where a library multiplies by it; undefined: nobody has computed it
};

// An operand between forward and backward.
struct KeptOperand {
  Kept values = {};
  at::Tensor scale = {};
  at::ScalarType dtype = at::kFloat;
  at::Tensor factor = {};
  bool is_transposed = false;  // the values are Operand::transposed

  bool is_defined() const { return values.is_defined(); }
  // The operand, and nothing is kept any more.
  Operand take() {
    at::Tensor there = values.take();
    Operand operand{is_transposed ? at::Tensor() : there, scale, dtype};
    if (is_transposed) operand.transposed = std::move(there);
    operand.factor = factor;
    return operand;
  }
};

// What an operand is a part of.
struct OperandScope {
  Group* group = nullptr;       // the ranks with the other parts of the tensor; null: it is whole here
  std::string_view label = {};  // for the trace; outlives what is kept of the operand
  at::Tensor offsets = {};      // (e + 1): the rows belong to experts, whose scales are apart; undefined: one scale
  int64_t num_experts = 0;      // likewise, of weights (e o, h): every expert has equally many rows
  at::Tensor scale = {};        // known from before: nothing is computed or exchanged
  int64_t layer = -1;           // as MatmulRecipe::add_layer() numbered it
  // The weight's product reads these very rows, with none of other ranks: its transpose may be made at once.
  bool is_for_wgrad = false;
};

// A layer whose products a recipe computes, as it remembers it.
struct RecipeLayer {
  std::string name;  // the same in every layout: "model.layers.0.self_attn.qkv_proj"
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t num_weight_elements = 0;  // of this rank
  // Of the whole model, and which of them are here; 0: a layer without experts.
  int64_t num_experts = 0, first_expert = 0, num_local_experts = 0;
};

class MatmulRecipe {
 public:
  explicit MatmulRecipe(Kernels kernels) : kernels_(kernels) {}
  virtual ~MatmulRecipe() = default;
  MatmulRecipe(const MatmulRecipe&) = delete;

  // The same recipe for the layers of another chunk, of which it knows none yet.
  virtual std::shared_ptr<const MatmulRecipe> for_chunk() const;
  // Layers say once that they are there, and have the number in their scopes; -1: nothing is remembered of them.
  virtual int64_t add_layer(const RecipeLayer& /*layer*/) const { return -1; }
  // What is remembered between passes; null: nothing.
  virtual std::shared_ptr<RecipeMemory> memory() const { return nullptr; }
  // Whether this layer of a model of so many is left to the plain recipe.
  virtual bool leaves_plain(int64_t /*layer*/, int64_t /*num_layers*/) const { return false; }

  // tensor (rows, columns) as an operand. With a group every rank of it calls.
  virtual Operand take(const at::Tensor& tensor, OperandRole role, const OperandScope& scope) const;
  // What the weight's product needs of an input that was taken from x.value.
  virtual KeptOperand keep(const Activation& x, const Operand& taken, const OperandScope& scope) const;

  // t tokens, h in, o out; bias (o) is undefined, or added in the precision of y
  virtual at::Tensor forward(const Operand& x, const Operand& w, const at::Tensor& bias) const;
  virtual at::Tensor dgrad(const Operand& dy, const Operand& w) const;
  // dw (o, h) wide: added to, or overwritten.
  virtual void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const;

  // The products of many experts (ops/grouped_linear): x and dy are sorted by expert, w is (e o, h).
  virtual at::Tensor grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const;
  virtual at::Tensor grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const;
  virtual void grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                              bool accumulate) const;

  // db += sum over t of dy, which no recipe rounds.
  void bias_grad_(const at::Tensor& db, const at::Tensor& dy) const;
  Kernels kernels() const { return kernels_; }

 private:
  Kernels kernels_;
};

// In the tensors' own dtype; one object for each choice of kernels.
std::shared_ptr<const MatmulRecipe> plain_recipe(Kernels kernels);

struct LayerContext;
// What layers multiply with: the context's, or the plain one of its kernels.
std::shared_ptr<const MatmulRecipe> recipe_of(const LayerContext& context);

}  // namespace megalith

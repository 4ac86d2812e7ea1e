// Module: a tree of layers that own Parameters. Ours, not torch's: it is light to compile, knows Placements, and tells
// what it costs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/context_parallel.h"
#include "nn/parameter.h"
#include "ops/attention/libraries.h"
#include "ops/kernels.h"

namespace megalith {

class DeferredGradients;  // nn/deferred_gradients.h
struct LoraOptions;       // nn/adapter_options.h
class MatmulRecipe;       // nn/matmul_recipe.h
struct Groups;            // comm/groups.h

// Which activations of a layer are kept as a way to compute them again (nn/kept.h): recompute_granularity selective.
// Read where the activation is made.
struct SelectiveRecompute {
  bool core_attention = false;  // the output of attention and its softmax statistics
  bool norms = false;           // the outputs of the normalisations
  bool mlp = false;             // everything between the MLP's input and its output
  bool mlp_activation = false;  // the product of the gate and up
  // Of layers with experts: all of it between the layer's input and output, an expert's activation, the shared expert.
  bool moe = false, expert_activation = false, shared_experts = false;
  bool latent_up = false;  // of latent attention: the projections up from the latents, and the norms before them
};

// What every layer is built with: who we are among the ranks, and in which form to hold the weights.
struct LayerContext {
  const Groups* groups = nullptr;  // live groups of this rank; outlives the model
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  // Where everything lies that a model computes with beside its parameters; unset: device. With parameters on kMeta, it
  // gives a model whose memory comes later (FSDP).
  std::optional<at::Device> buffer_device = std::nullopt;
  Kernels kernels = Kernels::kFused;
  ops::AttentionLibraries attention_libraries = {ops::AttentionLibrary::kFlash};  // on a GPU, the preferred one first
  bool is_sequence_parallel = false;
  uint64_t seed = 1234;  // of the dropout keys
  SelectiveRecompute recompute;
  // Where linears put their weight gradients while it is deferring; null: never deferred. Outlives the model.
  DeferredGradients* deferred_gradients = nullptr;
  std::vector<ContextParallelKind> context_parallel_kinds = {};  // one, or one a layer; empty: p2p
  // How the layers' matrix products are computed; null: in their own dtype, with `kernels` (recipe_of()).
  std::shared_ptr<const MatmulRecipe> recipe = nullptr;
  // Which linear layers get low-rank adapters; null: none.
  std::shared_ptr<const LoraOptions> lora = nullptr;
};

// A forward pass over b sequences of s tokens of this rank: under context parallelism s is its part of a sequence.
struct CostShape {
  int64_t b = 1, s = 1;
  int64_t encoder_s = 0;  // of the sequences that an encoder beside a decoder reads
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;  // parents and autograd nodes hold addresses
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Parameters in registration order, children included.
  void for_each_parameter(const std::function<void(Parameter&)>& visit) const;
  std::vector<Parameter*> parameters() const;
  int64_t num_parameters() const;  // canonical elements on this rank, padding not counted
  // Floating-point operations of a forward pass on this rank, children included: 2 a multiply-add, matrix products
  // only; backward takes twice as many. Attention's products are counted over all keys, not halved for causality: what
  // Primus reports. Megatron since 0.12 halves them (train/ has both).
  double forward_flops(const CostShape& shape) const;
  // Those of products with a frozen weight, which backward takes once only: it has no weight's product.
  double frozen_flops(const CostShape& shape) const;
  // This module and all below it.
  void for_each_module(const std::function<void(const Module&)>& visit) const;

 protected:
  Parameter& register_parameter(std::string name, Placement placement, const ParameterOptions& options);
  // A child owned elsewhere in the derived class.
  void register_module(Module& child) { children_.push_back(&child); }
  // This module's own part, without children.
  virtual double own_forward_flops(const CostShape& shape) const;
  virtual double own_frozen_flops(const CostShape& shape) const;
  // The pass over a child in a pass of this shape: another one where the child reads the encoder's sequences.
  virtual CostShape shape_of(const Module& child, const CostShape& shape) const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Module*> children_;
};

}  // namespace megalith

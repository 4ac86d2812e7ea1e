// Module: a tree of layers that own Parameters. Unlike torch's, it compiles fast and knows Placements and costs.
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

class DeferredGradients;
struct LoraOptions;
class MatmulRecipe;
struct Groups;

// Activations to be recomputed (nn/kept.h): recompute_granularity selective.
struct SelectiveRecompute {
  bool core_attention = false;  // attention's output and softmax statistics
  bool norms = false;
  bool mlp = false;             // everything between the MLP's input and output
  bool mlp_activation = false;  // the product of gate and up
  // In expert layers: everything between input and output, an expert's activation, the shared expert.
  bool moe = false, expert_activation = false, shared_experts = false;
  bool latent_up = false;  // the up-projections of latent attention and the norms before them
};

struct LayerContext {
  const Groups* groups = nullptr;  // live groups of this rank; must outlive the model
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  // The device of a model's buffers; unset: device. With parameters on kMeta, memory comes later (FSDP).
  std::optional<at::Device> buffer_device = std::nullopt;
  Kernels kernels = Kernels::kFused;
  ops::AttentionLibraries attention_libraries = {ops::AttentionLibrary::kFlash};  // on a GPU, the preferred one first
  bool is_sequence_parallel = false;
  uint64_t seed = 1234;  // of the dropout keys
  SelectiveRecompute recompute;
  // Collects weight gradients while deferring; null: never. Must outlive the model.
  DeferredGradients* deferred_gradients = nullptr;
  std::vector<ContextParallelKind> context_parallel_kinds = {};  // one, or one per layer; empty: p2p
  // null: plain, with `kernels` (recipe_of()).
  std::shared_ptr<const MatmulRecipe> recipe = nullptr;
  // null: no low-rank adapters.
  std::shared_ptr<const LoraOptions> lora = nullptr;
};

// b sequences of s tokens of this rank.
struct CostShape {
  int64_t b = 1, s = 1;
  int64_t encoder_s = 0;  // of an encoder beside a decoder
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;  // parents and autograd nodes hold addresses
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  void for_each_parameter(const std::function<void(Parameter&)>& visit) const;
  std::vector<Parameter*> parameters() const;
  int64_t num_parameters() const;  // canonical elements on this rank, without padding
  // Floating-point operations of a forward pass on this rank, children included: 2 per multiply-add of matrix products;
  // backward takes twice as many. Attention counts all keys, as Primus reports; Megatron halves them for causality
  // since 0.12 (train/ has both).
  double forward_flops(const CostShape& shape) const;
  // FLOPs of products with a frozen weight, which backward repeats only once.
  double frozen_flops(const CostShape& shape) const;
  void for_each_module(const std::function<void(const Module&)>& visit) const;

 protected:
  Parameter& register_parameter(std::string name, Placement placement, const ParameterOptions& options);
  // Adds a child owned by the derived class.
  void register_module(Module& child) { children_.push_back(&child); }
  // Without children.
  virtual double own_forward_flops(const CostShape& shape) const;
  virtual double own_frozen_flops(const CostShape& shape) const;
  // The shape of a child's pass: another one if the child reads the encoder's sequences.
  virtual CostShape shape_of(const Module& child, const CostShape& shape) const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Module*> children_;
};

}  // namespace megalith

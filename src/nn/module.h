// A tree of layers that own Parameters. Unlike torch's, it compiles fast and knows Placements and costs.
//
// In nn/: b sequences of s tokens, t = b s, h hidden, n query and g key-value heads of d channels, on this rank; t' is
// t / tp under sequence parallelism, else t. `name` is canonical ("model.layers.0.self_attn"), `layer` counts over the
// whole model, is_transposed means canonical weights (in, out) as in GPT-2. Wide is fp32, or fp64 for fp64 models.
// Methods on activations are differentiable. Constructors throw UserError if options conflict, or if a parallel size
// does not divide what it cuts.
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

struct SelectiveRecompute {
  bool core_attention = false;  // output and softmax statistics
  bool norms = false;
  bool mlp = false;             // all between the MLP's input and output
  bool mlp_activation = false;  // gate times up
  // All between input and output; an expert's activation; the shared expert.
  bool moe = false, expert_activation = false, shared_experts = false;
  bool latent_up = false;  // its up-projections and their norms
};

struct LayerContext {
  const Groups* groups = nullptr;  // must outlive the model
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  // For buffers; unset: device. FSDP's parameters are on kMeta at first.
  std::optional<at::Device> buffer_device = std::nullopt;
  Kernels kernels = Kernels::kFused;
  ops::AttentionLibraries attention_libraries = {ops::AttentionLibrary::kFlash};  // on a GPU, preferred first
  bool is_sequence_parallel = false;
  uint64_t seed = 1234;        // of the dropout keys
  double embedding_noise = 0;  // NEFTune's alpha
  SelectiveRecompute recompute;
  // Null: never deferred. Must outlive the model.
  DeferredGradients* deferred_gradients = nullptr;
  std::vector<ContextParallelKind> context_parallel_kinds = {};  // one, or one per layer; empty: p2p
  // null: plain, with `kernels`.
  std::shared_ptr<const MatmulRecipe> recipe = nullptr;
  std::shared_ptr<const LoraOptions> lora = nullptr;
};

struct CostShape {
  int64_t b = 1, s = 1;
  int64_t encoder_s = 0;  // beside a decoder
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;  // parents and nodes hold addresses
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  void for_each_parameter(const std::function<void(Parameter&)>& visit) const;
  std::vector<Parameter*> parameters() const;
  int64_t num_parameters() const;  // canonical, on this rank
  // FLOPs of this rank's forward pass, with children: 2 per multiply-add of matrix products; backward takes twice as
  // many. Attention counts all keys, like Primus; Megatron halves them for causality (train/ has both).
  double forward_flops(const CostShape& shape) const;
  // Products with frozen weights, which backward does once.
  double frozen_flops(const CostShape& shape) const;
  void for_each_module(const std::function<void(const Module&)>& visit) const;

 protected:
  Parameter& register_parameter(std::string name, Placement placement, const ParameterOptions& options);
  // The derived class owns it.
  void register_module(Module& child) { children_.push_back(&child); }
  virtual double own_forward_flops(const CostShape& shape) const;
  virtual double own_frozen_flops(const CostShape& shape) const;
  // Differs for readers of the encoder's sequences.
  virtual CostShape shape_of(const Module& child, const CostShape& shape) const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Module*> children_;
};

}  // namespace megalith

// A transformer's MLP:
//
//   down( act(gate x) * up x )   gated: Llama's with SiLU; gate and up in one product
//   down( act(up x) )            plain: GPT's with GELU
//
// Sources: arXiv:2002.05202 (gated); Radford et al. 2019 (plain).
#pragma once

#include <optional>
#include <string>

#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "ops/expert_activation/expert_activation.h"

namespace megalith {

struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct MlpSite {
  MlpNames names = {};
  bool is_transposed = false;
  double output_init_std = 0.02;    // of `down`
  std::optional<int64_t> ffn = {};  // overrides ffn_hidden_size, for shared experts
  // Overrides the options'.
  std::optional<ops::ExpertActivation> activation = {};
};

class Mlp : public FeedForward {
 public:
  Mlp(const LayerContext& context, const std::string& name, const LayerOptions& options, const MlpSite& site);

  at::Tensor forward(const Activation& x, const ForwardContext& forward) override;

 private:
  ops::ExpertActivation activation_;
  Kernels kernels_;
  SelectiveRecompute policy_;
  Linear up_;
  Linear down_;
};

}  // namespace megalith

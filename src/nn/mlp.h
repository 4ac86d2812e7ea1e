// The MLP of a transformer, each token by itself:
//
//   down( act(gate x) * up x )   gated: Llama's with SiLU; gate and up in one product
//   down( act(up x) )            plain: GPT's with GELU
//
// Sources: Shazeer 2020, arXiv:2002.05202 (gated); Radford et al. 2019 (plain, GELU).
#pragma once

#include <optional>
#include <string>

#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "ops/expert_activation/expert_activation.h"

namespace megalith {

// The names of the canonical linears below the layer's name; `gate` where there is one.
struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

// What only the builder of a model knows.
struct MlpSite {
  MlpNames names = {};
  bool is_transposed = false;       // the canonical weights are (in, out), as GPT-2's
  double output_init_std = 0.02;    // of `down`
  std::optional<int64_t> ffn = {};  // f of the whole, where it is not ffn_hidden_size: of a shared expert
  // A form that no option names, such as GEGLU. SiLU comes only gated, squared ReLU only plain.
  std::optional<ops::ExpertActivation> activation = {};
};

class Mlp : public FeedForward {
 public:
  // name  canonical: "model.layers.0.mlp", with MlpSite::names below it
  // UserError when tp does not divide f, and when the options do not fit one another.
  Mlp(const LayerContext& context, const std::string& name, const LayerOptions& options, const MlpSite& site);

  at::Tensor forward(const Activation& x, const ForwardContext& forward) override;

 private:
  ops::ExpertActivation activation_;
  Kernels kernels_;
  SelectiveRecompute policy_;
  Linear up_;  // [gate | up], or only up
  Linear down_;
};

}  // namespace megalith

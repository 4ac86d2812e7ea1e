// The MLP of a transformer, each token by itself:
//
//   down( act(gate x) * up x )   gated: Llama's with SiLU; gate and up in one product
//   down( act(up x) )            plain: GPT's with GELU
//
// Sources: Shazeer 2020, arXiv:2002.05202 (gated); Radford et al. 2019 (plain, GELU).
#pragma once

#include <string>

#include "nn/layer_parts.h"
#include "ops/expert_activation/kind.h"

namespace megalith {

// Of the canonical linears below the layer's name; `gate` where there is one.
struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct MlpOptions {
  int64_t hidden = 0;                                           // h
  int64_t ffn = 0;                                              // f, of the whole
  ops::ActivationKind activation = ops::ActivationKind::kSilu;  // SiLU comes gated alone, squared ReLU plain alone
  bool is_gated = true;
  bool has_bias = false;  // of all linears
  MlpNames names = {};
  bool is_transposed = false;  // the canonical weights are (in, out), as GPT-2's
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class Mlp : public FeedForward {
 public:
  // name  canonical: "model.layers.0.mlp", with MlpOptions::names below it
  // UserError when tp does not divide f.
  Mlp(const LayerContext& context, const std::string& name, const MlpOptions& options);

  at::Tensor forward(const Activation& x, const ForwardContext& forward) override;

 private:
  ops::ActivationKind activation_;
  bool is_gated_;
  Kernels kernels_;
  SelectiveRecompute policy_;
  Linear up_;  // [gate | up], or up alone
  Linear down_;
};

}  // namespace megalith

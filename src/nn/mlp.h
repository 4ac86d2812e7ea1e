// The gated MLP of the Llama family: down( silu(gate x) * up x ), gate and up in one product.
#pragma once

#include <string>

#include "nn/linear.h"
#include "nn/module.h"

namespace megalith {

struct MlpOptions {
  int64_t hidden = 0;  // h
  int64_t ffn = 0;     // f, of the whole
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class GatedMlp : public Module {
 public:
  // name  canonical: "model.layers.0.mlp", with gate_proj, up_proj and down_proj below it
  // UserError when tp does not divide f.
  GatedMlp(const LayerContext& context, const std::string& name, const MlpOptions& options);

  // x (t, h) -> (t, h), differentiable
  at::Tensor forward(const at::Tensor& x);

 protected:
  LayerCost own_cost(const CostShape& shape) const override;

 private:
  int64_t ffn_;  // of this rank
  Kernels kernels_;
  Linear gate_up_, down_;
};

}  // namespace megalith

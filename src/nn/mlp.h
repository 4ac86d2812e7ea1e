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
  bool keeps_input = true;  // otherwise forward is told how to compute it again
};

class GatedMlp : public Module {
 public:
  // name  canonical: "model.layers.0.mlp", with gate_proj, up_proj and down_proj below it
  // UserError when tp does not divide f.
  GatedMlp(const LayerContext& context, const std::string& name, const MlpOptions& options);

  // x (t, h) -> (t, h), differentiable
  // restore: as Linear::forward has it, where MlpOptions::keeps_input is false.
  at::Tensor forward(const at::Tensor& x, const RestoreInput& restore = {});
  LayerCost cost(const CostShape& shape) const override;

 protected:
  LayerCost own_cost(const CostShape& shape) const override;

 private:
  at::Tensor transform(const at::Tensor& x, const RestoreInput& restore);

  int64_t ffn_;  // of this rank
  Kernels kernels_;
  bool keeps_input_, recomputes_all_, recomputes_activation_;
  Linear gate_up_, down_;
};

}  // namespace megalith

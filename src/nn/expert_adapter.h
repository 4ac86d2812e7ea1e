// Low-rank adapters of experts: one per expert and linear layer; all on a rank in two grouped products.
//
//   y[i] += scale * B[j] A[j] x[i]    for the rows i of expert j        A (r, in), B (out, r)
//
// For gate and up, A is whole on every etp rank and B is cut like the layer; for down, A is cut and B is whole. So an
// etp rank's result is part of the frozen product's sum, and no rows travel; gradients of whole tensors are partial
// over etp. Canonical names are PEFT's without its prefix: "model.layers.0.mlp.experts.3.gate_proj.lora_A.weight".
// Megatron-LM's target linear_fc1 gives gate and up one shared A.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/expert_placement.h"
#include "nn/grouped_linear.h"

namespace megalith {

struct ExpertAdapterSite {
  std::string name;                  // of the layer's parameter: "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<std::string> linears;  // of an expert, in the order of y's columns: {"gate_proj", "up_proj"}
  bool is_down = false;              // its input is cut over etp, otherwise its output
  AxisSet axes;                      // of the layer's own weight
  Axis part_axis = Axis::kEtp;       // over which experts are cut
  double rows_per_token = 1;
};

AdaptableLayer adaptable_experts(const ExpertCut& cut, const ExpertAdapterSite& site);

class ExpertAdapter : public Module {
 public:
  // Null if LayerContext::lora has no target here.
  static std::unique_ptr<ExpertAdapter> make(const LayerContext& context, const ExpertCut& cut,
                                             const ExpertAdapterSite& site);

  // y (n, out_local) from x (n, in_local), rows sorted by expert; changed in place, differentiable.
  at::Tensor add_to(at::Tensor y, const Activation& x, const at::Tensor& offsets);

 private:
  // An expert's linears that share one A.
  struct Branch {
    std::string name;
    std::vector<std::string> linears;  // that are adapted: all of the branch's or none
    int64_t local_rows = 0;
    std::unique_ptr<GroupedLinear> up = nullptr;
  };
  ExpertAdapter(const LayerContext& context, const ExpertCut& cut, const ExpertAdapterSite& site,
                std::vector<Branch> branches);

  double scale_;
  int64_t rank_;
  std::unique_ptr<GroupedLinear> down_;
  std::vector<Branch> branches_;
};

}  // namespace megalith

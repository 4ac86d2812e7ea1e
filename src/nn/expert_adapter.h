// Low-rank adapters of experts: one for each expert and linear layer, all of a rank's in two grouped products.
//
//   y[i] += scale * B[j] A[j] x[i]    for the rows i of expert j        A (r, in), B (out, r)
//
// An expert's A of gate and up is whole on every etp rank and its B is cut as the layer is; A of down is cut and its B
// is whole. What an etp rank adds is then a part of the sum that brings the results together, as the frozen product is,
// so no rows travel; gradients of what is whole are partial over etp. Canonical names are PEFT's behind its prefix:
// "model.layers.0.mlp.experts.3.gate_proj.lora_A.weight". A word of Megatron-LM's (linear_fc1) gives the gate and the
// up of an expert one A.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/expert_placement.h"
#include "nn/grouped_linear.h"

namespace megalith {

// What the adapters stand beside: a grouped linear of this rank's experts.
struct ExpertAdapterSite {
  std::string name;                  // of the layer's parameter: "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<std::string> linears;  // of an expert, in the order of y's columns: {"gate_proj", "up_proj"}
  bool is_down = false;              // its input is cut over etp; otherwise its output
  AxisSet axes;                      // of the layer's own weight
  Axis part_axis = Axis::kEtp;       // over which experts are cut
  double rows_per_token = 1;
};

// The layer as targets are matched with it.
AdaptableLayer adaptable_experts(const ExpertCut& cut, const ExpertAdapterSite& site);

class ExpertAdapter : public Module {
 public:
  // Null where LayerContext::lora has no target here.
  static std::unique_ptr<ExpertAdapter> make(const LayerContext& context, const ExpertCut& cut,
                                             const ExpertAdapterSite& site);

  // y (n, out_local) as the layer gave it for x (n, in_local), rows sorted by expert; changed in place, differentiable.
  at::Tensor add_to(at::Tensor y, const Activation& x, const at::Tensor& offsets);

 private:
  // The linears of an expert that share one A: all of them, or one.
  struct Branch {
    std::string name;                  // of an expert: "gate_proj"
    std::vector<std::string> linears;  // that are adapted: all of the branch's or none
    int64_t local_rows = 0;            // of y
    std::unique_ptr<GroupedLinear> up = nullptr;
  };
  ExpertAdapter(const LayerContext& context, const ExpertCut& cut, const ExpertAdapterSite& site,
                std::vector<Branch> branches);

  double scale_;
  int64_t rank_;
  std::unique_ptr<GroupedLinear> down_;
  std::vector<Branch> branches_;  // in the order of y's columns
};

}  // namespace megalith

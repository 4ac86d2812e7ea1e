// Low-rank adapters of experts; all on a rank in two grouped products.
//
//   y[i] += scale * B[j] A[j] x[i]    for the rows i of expert j        A (r, in), B (out, r)
//
// For gate and up, A is whole on every etp rank and B cut like the layer; for down the reverse. So a rank's result is
// part of the frozen product's sum, without communication; whole tensors' gradients are partial over etp. Names:
// "model.layers.0.mlp.experts.3.gate_proj.lora_A.weight".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/expert_placement.h"
#include "nn/grouped_linear.h"

namespace megalith {

struct ExpertAdapterSite {
  std::string name;                  // the layer's: "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<std::string> linears;  // of an expert, in y's order: {"gate_proj", "up_proj"}
  bool is_down = false;              // cut by input, not output
  AxisSet axes;                      // of the layer's weight
  Axis part_axis = Axis::kEtp;       // cuts experts
  double rows_per_token = 1;
};

AdaptableLayer adaptable_experts(const ExpertCut& cut, const ExpertAdapterSite& site);

class ExpertAdapter : public Module {
 public:
  // Null if LayerContext::lora has no target here.
  static std::unique_ptr<ExpertAdapter> make(const LayerContext& context, const ExpertCut& cut,
                                             const ExpertAdapterSite& site);

  // Adds in place to y (n, out_local), for x (n, in_local) sorted by expert.
  at::Tensor add_to(at::Tensor y, const Activation& x, const at::Tensor& offsets);

 private:
  // Linears that share one A.
  struct Branch {
    std::string name;
    std::vector<std::string> linears;  // the adapted: all or none
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

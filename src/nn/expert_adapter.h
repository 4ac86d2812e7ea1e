// Low-rank adapters of experts; all on a rank in two grouped products.
//
//   y[i] += scale * B[j] A[j] x[i]    for the rows i of expert j        A (r, in), B (out, r)
//
// For gate and up, A is whole on every etp rank and B cut like the layer; for down the reverse. So a rank's result is
// part of the frozen product's sum, without communication; whole tensors' gradients are partial over etp. Names:
// "model.layers.0.mlp.experts.3.gate_proj.lora_A.weight". A0 and B0 as in low_rank_adapter.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/expert_placement.h"
#include "nn/grouped_linear.h"
#include "nn/low_rank_adapter.h"

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

  // As LowRankAdapter's, of this rank's experts.
  void list_decomposed(std::vector<DecomposedMatrix>& into) const;

 private:
  // Linears that share one A.
  struct Branch {
    std::string name;
    std::vector<std::string> linears;  // the adapted: all or none
    int64_t local_rows = 0;
    int64_t rank = 0;
    double scale = 1;
  };
  // A's of all experts, and B's of each adapted branch.
  struct Pair {
    std::unique_ptr<GroupedLinear> down;
    std::vector<std::unique_ptr<GroupedLinear>> ups;
  };
  ExpertAdapter(const LayerContext& context, const ExpertCut& cut, const ExpertAdapterSite& site,
                std::vector<Branch> branches);
  Pair make_pair(const LayerContext& context, const ExpertCut& cut, const ExpertAdapterSite& site, bool is_start);
  at::Tensor product(const Pair& pair, const at::Tensor& y, const Activation& x, const at::Tensor& offsets) const;

  std::vector<Branch> branches_;
  Pair trained_, start_;  // start_ without down: none
  std::vector<DecomposedMatrix> decomposed_;
};

}  // namespace megalith

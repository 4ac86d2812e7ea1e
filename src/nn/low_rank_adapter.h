// A low-rank adapter beside a frozen linear layer:
//
//   y += scale * B A dropout(x)        A (r, in), B (out, r)
//
// Both are linear layers in the model's precision: for a column layer A is replicated and B cut by rows, for a row
// layer A is cut by columns and B replicated, so only (t, r) travels. Names are PEFT's without prefix:
// "model.layers.0.self_attn.q_proj.lora_A.weight".
//
// With lora.use_dora the adapted weight's rows have trained lengths m:
//
//   y = m / |W + scale * B A| * (W x + scale * B A dropout(x)) + b
//
// |..| uses this step's weights, without gradient (DoRA, section 4.3). Sources: arXiv:2106.09685 (LoRA),
// arXiv:2402.09353 (DoRA).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/linear.h"

namespace megalith {

Init adapter_init(AdapterInit kind, int64_t in, int64_t out);

class LowRankAdapter : public Module {
 public:
  struct Site {
    std::string name;
    int64_t in_features = 0;
    const std::vector<LinearPart>& parts;
    LinearRole role = LinearRole::kReplicated;
    LinearKind kind = LinearKind::kOther;
    std::vector<int64_t> input_parts = {};
  };

  // Null without a target here. UserError if the rank exceeds the layer's widths.
  static std::unique_ptr<LowRankAdapter> make(const LayerContext& context, const Site& site);

  // Adds in place to y (t', out_local), for x (t, in_local). row_ids (b s) int64: global token numbers; undefined: no
  // dropout.
  at::Tensor add_to(at::Tensor y, const Activation& x, const at::Tensor& row_ids);

  // add_to() takes y without bias, and rescale() must follow.
  bool rescales() const { return magnitude_ != nullptr; }
  // y m / |W + scale * B A|. weight: (out_local, in_local), frozen. m's gradient goes to its Parameter.
  at::Tensor rescale(const at::Tensor& y, const at::Tensor& weight);

 private:
  friend struct RescaleFunction;
  // Parts that share one A.
  struct Branch {
    std::string name;  // canonical, without ".lora_A"
    std::vector<LinearPart> parts;
    int64_t local_rows = 0;
    std::unique_ptr<Linear> up;
  };
  LowRankAdapter(const LayerContext& context, const Site& site, std::vector<Branch> branches);
  Activation read(const Activation& x, const at::Tensor& row_ids) const;
  at::Tensor added(const Branch& branch, const at::Tensor& delta, const at::Tensor& row_ids) const;
  struct ColumnRun {
    int64_t first, width;
  };
  at::Tensor rows_of(const at::Tensor& x, const at::Tensor& row_ids) const;
  void register_magnitude(const LayerContext& context, const Site& site);
  // (out_local) wide: |W + scale * B A|; 1 if not adapted.
  at::Tensor lengths(const at::Tensor& weight) const;
  // From adapted to all rows (`fill` elsewhere), and back.
  at::Tensor spread(const at::Tensor& of_adapted, double fill) const;
  at::Tensor gathered(const at::Tensor& of_all) const;

  double scale_, dropout_;
  bool drops_input_;
  Kernels kernels_;
  LinearRole role_;
  int tp_rank_, tp_size_;
  uint64_t seed_;
  std::string name_;
  int64_t rank_;
  std::vector<ColumnRun> input_columns_;
  std::unique_ptr<Linear> down_;
  std::vector<Branch> branches_;
  Group* tp_;
  Parameter* magnitude_ = nullptr;  // null without lora.use_dora
};

void freeze_all_but_adapters(const std::vector<Parameter*>& parameters);

}  // namespace megalith

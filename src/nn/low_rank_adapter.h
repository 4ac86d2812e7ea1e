// A low-rank adapter beside a linear layer, which is frozen:
//
//   y += scale * B A dropout(x)        A (r, in), B (out, r)
//
// A and B are linear layers of their own, placed by the role of theirs: A of a column layer is replicated and its B cut
// by rows, A of a row layer is cut by columns and its B replicated. So only (t, r) travels for them, and checkpoints,
// ZeRO, FSDP, pipelines and recomputation treat them as any other layer. They are always multiplied in the model's
// precision. Canonical names are PEFT's behind its prefix: "model.layers.0.self_attn.q_proj.lora_A.weight".
//
// With lora.use_dora each row of the adapted weight has a length of its own, which is trained (m, one number a row):
//
//   y = m / |W + scale * B A| * (W x + scale * B A dropout(x)) + b
//
// The lengths |..| are of this step's weights, and no gradient flows through them, as in the paper's section 4.3.
// Sources: Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353 (DoRA).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/linear.h"

namespace megalith {

// How a matrix (out, in) of an adapter begins.
Init adapter_init(AdapterInit kind, int64_t in, int64_t out);

class LowRankAdapter : public Module {
 public:
  // What the adapter stands beside.
  struct Site {
    std::string name;  // of the layer: "model.layers.0.self_attn.qkv_proj"
    int64_t in_features = 0;
    const std::vector<LinearPart>& parts;
    LinearRole role = LinearRole::kReplicated;
    LinearKind kind = LinearKind::kOther;
    std::vector<int64_t> input_parts = {};  // as LinearOptions has them
  };

  // Null where LayerContext::lora has no target here. UserError for a rank above the layer's widths.
  static std::unique_ptr<LowRankAdapter> make(const LayerContext& context, const Site& site);

  // y (t', out_local) as the layer gave it for x (t, in_local); changed in place, differentiable.
  // row_ids  (b s) int64: global number of each token of this rank, in training; undefined: nothing is dropped
  at::Tensor add_to(at::Tensor y, const Activation& x, const at::Tensor& row_ids);

  // Whether y is multiplied too: then add_to() wants it without the layer's bias, and this is to follow.
  bool rescales() const { return magnitude_ != nullptr; }
  // y times m / |W + scale * B A|; differentiable by y, its gradient by m goes to the Parameter.
  // weight  (out_local, in_local): the frozen layer's
  at::Tensor rescale(const at::Tensor& y, const at::Tensor& weight);

 private:
  friend struct RescaleFunction;
  // The parts of the layer that share one A: all of them, or one.
  struct Branch {
    std::string name;  // the canonical name without ".lora_A"
    std::vector<LinearPart> parts;
    int64_t local_rows = 0;      // of y
    std::unique_ptr<Linear> up;  // null where nothing is added
  };
  LowRankAdapter(const LayerContext& context, const Site& site, std::vector<Branch> branches);
  Activation read(const Activation& x, const at::Tensor& row_ids) const;
  at::Tensor added(const Branch& branch, const at::Tensor& delta, const at::Tensor& row_ids) const;
  // Runs of this rank's columns of the layer's input: where each begins in the whole, and its width.
  struct ColumnRun {
    int64_t first, width;
  };
  // The numbers of the tokens in x, which may be this rank's share of them.
  at::Tensor rows_of(const at::Tensor& x, const at::Tensor& row_ids) const;
  void register_magnitude(const LayerContext& context, const Site& site);
  // (out_local) wide: |W + scale * B A| of the rows that are adapted, 1 of others.
  at::Tensor lengths(const at::Tensor& weight) const;
  // One number for each row of y that is adapted, to all rows and back; `fill` elsewhere.
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
  std::vector<Branch> branches_;  // in the order of y's columns
  Group* tp_;
  Parameter* magnitude_ = nullptr;  // m; null: lora.use_dora is off
};

// Whether only adapters are trained; then all else is frozen.
void freeze_all_but_adapters(const std::vector<Parameter*>& parameters);

}  // namespace megalith

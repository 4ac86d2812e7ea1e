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
// |..| uses this step's weights, without gradient (DoRA, section 4.3).
//
// If lora.init_lora_weights decomposes the weight (PiSSA, OLoRA), A and B begin as its parts A0 and B0, which are
// kept:
//
//   y += scale * (B A dropout(x) - B0 A0 x)
//
// PEFT subtracts scale * B0 A0 from the weight instead; here it stays the model's. Both compute the same.
// Sources: arXiv:2106.09685 (LoRA), arXiv:2402.09353 (DoRA), arXiv:2404.02948 (PiSSA), arXiv:2406.01775 (OLoRA).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/linear.h"

namespace megalith {

// Ends A0's and B0's names after ".lora_A" and ".lora_B".
inline constexpr std::string_view kStartEnding = "_start";

// rank: 1 / rank is Gaussian's deviation.
Init adapter_init(AdapterInit kind, int64_t in, int64_t out, int64_t rank);

// Rows of canonical weights (rows, in), one after another; A0 and B0 are parts of their product.
struct DecomposedMatrix {
  std::string name;               // A0 is "name.lora_A_start.weight"
  std::vector<LinearPart> parts;  // "part.weight"
  int64_t in_features = 0, rank = 0;
  double scale = 1;
};

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

  // Appends the matrices that are to be decomposed; none without A0 and B0.
  void list_decomposed(std::vector<DecomposedMatrix>& into) const;

 private:
  friend struct RescaleFunction;
  // Parts that share one A; none: not adapted.
  struct Branch {
    std::string name;  // canonical, without ".lora_A"
    std::vector<LinearPart> parts;
    int64_t local_rows = 0;
    int64_t rank = 0;
    double scale = 1;
  };
  // A, and a B for each adapted branch.
  struct Pair {
    std::unique_ptr<Linear> down;
    std::vector<std::unique_ptr<Linear>> ups;
  };
  LowRankAdapter(const LayerContext& context, const Site& site, std::vector<Branch> branches);
  Pair make_pair(const LayerContext& context, const Site& site, bool is_start);
  // A pair's addition to y. row_ids undefined: without dropout.
  at::Tensor product(const Pair& pair, const at::Tensor& y, const Activation& x, const at::Tensor& row_ids) const;
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

  double dropout_;
  bool drops_input_;
  Kernels kernels_;
  LinearRole role_;
  int tp_rank_, tp_size_;
  uint64_t seed_;
  std::string name_;
  std::vector<ColumnRun> input_columns_;
  std::vector<Branch> branches_;
  Pair trained_, start_;  // start_ without down: none
  Group* tp_;
  Parameter* magnitude_ = nullptr;  // null without lora.use_dora
};

// Leaves modules that lora.modules_to_save names, too.
void freeze_all_but_adapters(const std::vector<Parameter*>& parameters, const LoraOptions& options = {});
// After the above: an adapter's, or saved with them.
bool belongs_to_adapters(const Parameter& parameter);
// Errors of lora.modules_to_save for all parameters of a model that has the adapters.
std::vector<UserError> check_saved_modules(const LoraOptions& options, const std::vector<Parameter*>& parameters);

}  // namespace megalith

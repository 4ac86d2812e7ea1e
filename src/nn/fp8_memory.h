// What FP8 recipes remember of a chunk's layers: the eight-bit copies of weights during a step, and, for delayed
// scaling, the largest absolute values of past microbatches with the scales that follow from them.
//
// Delayed scaling has an entry for each operand of each layer (input, weight, gradient), and of layers with experts one
// for each expert of the whole model. What a pass sees is recorded; when the pass is over the amaxes are reduced over
// all ranks that hold parts of the tensors or other samples (tp, cp, dp), the history moves on by one, and
//
//   scale = max_fp8 / amax / 2^margin     amax: the newest of the history, or its largest
//
// with the scale that was where amax is 0 or not finite, and 1 at first. Inputs and weights move on after each forward
// pass of a microbatch, gradients after each backward pass. A forward pass's scales are kept until its backward pass:
// what is computed again there is rounded as it was, and is not recorded again.
// Nothing is read on the host. Source: Transformer Engine's DelayedScaling.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "nn/matmul_recipe.h"
#include "nn/recipe_memory.h"

namespace megalith {

inline constexpr const char* kFp8ScaleKey = "fp8_scale";
inline constexpr const char* kFp8HistoryKey = "fp8_amax_history";

struct DelayedScaling {
  int64_t history_length = 1;
  bool takes_largest = false;  // of the history, instead of the newest
  int64_t margin = 0;
};

// The entries of one kind of pass.
class AmaxLedger {
 public:
  int64_t add(int64_t count);  // the first of `count` new ones
  void allocate(const at::TensorOptions& options, int64_t history_length);
  bool is_allocated() const { return scales.defined(); }
  void record(int64_t first, const at::Tensor& amax);
  // The pass is over.
  void move_on(double largest, const DelayedScaling& how, const Groups& groups);

  int64_t size = 0;
  at::Tensor scales;   // (size)
  at::Tensor history;  // (size, history_length), the newest first
  at::Tensor amax;     // (size), of the present pass
};

class Fp8Memory : public RecipeMemory {
 public:
  // keeps_weights  whether the eight-bit copies of weights stay for the whole step; otherwise only their scales do
  Fp8Memory(std::optional<DelayedScaling> delayed, double largest_gradient, bool keeps_weights);

  bool is_delayed() const { return delayed_.has_value(); }
  // has_transposed  the copy of its weight stays as columns by rows, too
  int64_t add_layer(const RecipeLayer& layer, bool has_transposed = false);

  // ---- delayed scaling ----
  // The scale in use: 0-d, or one for each expert of this rank.
  at::Tensor scale(int64_t layer, OperandRole role);
  // Whether what is seen now counts: the first time in a training step.
  bool is_recording(OperandRole role) const;
  // amax: 0-d, or one for each expert of this rank.
  void record(int64_t layer, OperandRole role, const at::Tensor& amax);

  // ---- weights ----
  struct Weight {
    Operand operand;  // without values where these are not kept
    at::Tensor amax;  // of delayed scaling
  };
  // The layer's place for it; null outside of a step.
  Weight* weight(int64_t layer);
  void set_weight(int64_t layer, Operand operand, at::Tensor amax);

  void begin_step() override;
  void end_step() override;
  void begin_forward(int microbatch) override;
  void end_forward(int microbatch, const Groups& groups) override;
  void begin_backward(int microbatch) override;
  void end_backward(int microbatch, const Groups& groups) override;
  const std::vector<State>& states() override;
  int64_t weight_bytes() const override { return keeps_weights_ ? num_copied_elements_ : 0; }

 private:
  enum class Pass { kNone, kForward, kBackward };
  struct Layer {
    RecipeLayer about;
    int64_t first_input, first_weight, first_gradient;
    int64_t num_entries;

    int64_t first(OperandRole role) const;
  };
  void allocate();
  const Layer& layer_at(int64_t layer) const { return layers_.at(static_cast<size_t>(layer)); }

  const std::optional<DelayedScaling> delayed_;
  const double largest_gradient_;
  const bool keeps_weights_;
  std::vector<Layer> layers_;
  int64_t num_copied_elements_ = 0;  // of weights, those of transposes too
  AmaxLedger forward_, backward_;
  std::vector<State> states_;

  Pass pass_ = Pass::kNone;
  // In the present pass: a copy, which stays as it is when the ledger moves on. Undefined: the ledger's.
  at::Tensor forward_scales_, gradient_scales_;
  std::map<int, at::Tensor> scales_of_microbatches_;  // from forward to backward
  bool is_in_step_ = false;
  std::vector<Weight> weights_;
};

}  // namespace megalith

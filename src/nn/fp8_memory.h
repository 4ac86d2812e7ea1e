// The state of FP8 recipes per chunk: eight-bit copies of weights during a step and, for delayed scaling, past
// microbatches' amaxes with the resulting scales.
//
// Delayed scaling has an entry per layer and operand (input, weight, gradient), or per expert of the whole model. After
// a pass amaxes are reduced over the ranks with other parts or samples (tp, cp, dp), the history moves on by one, and
//
//   scale = max_fp8 / amax / 2^margin     amax: the newest of the history, or its largest
//
// or the old scale if amax is 0 or not finite; 1 at first. Inputs and weights move on after each microbatch's forward
// pass, gradients after its backward pass, which reuses the forward's scales: recomputation rounds as before and is not
// recorded. The host reads nothing. Source: Transformer Engine's DelayedScaling.
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

class AmaxLedger {
 public:
  int64_t add(int64_t count);  // returns the first of `count` new ones
  void allocate(const at::TensorOptions& options, int64_t history_length);
  bool is_allocated() const { return scales.defined(); }
  void record(int64_t first, const at::Tensor& amax);
  void move_on(double largest, const DelayedScaling& how, const Groups& groups);

  int64_t size = 0;
  at::Tensor scales;
  at::Tensor history;  // (size, history_length), newest first
  at::Tensor amax;     // (size), of the present pass
};

class Fp8Memory : public RecipeMemory {
 public:
  // keeps_weights  eight-bit copies for the whole step; otherwise only their scales
  Fp8Memory(std::optional<DelayedScaling> delayed, double largest_gradient, bool keeps_weights);

  bool is_delayed() const { return delayed_.has_value(); }
  // has_transposed  also keep the transposed weight
  int64_t add_layer(const RecipeLayer& layer, bool has_transposed = false);

  // ---- delayed scaling ----
  // The scale in use: 0-d, or one for each expert of this rank.
  at::Tensor scale(int64_t layer, OperandRole role);
  // True the first time in a training step.
  bool is_recording(OperandRole role) const;
  void record(int64_t layer, OperandRole role, const at::Tensor& amax);

  // ---- weights ----
  struct Weight {
    Operand operand;  // without values if these are not kept
    at::Tensor amax;  // for delayed scaling
  };
  // The layer's slot; null outside of a step.
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
  int64_t num_copied_elements_ = 0;  // of weights, transposes included
  AmaxLedger forward_, backward_;
  std::vector<State> states_;

  Pass pass_ = Pass::kNone;
  // For the present pass: copies that survive the ledger's moving on. Undefined: use the ledger's.
  at::Tensor forward_scales_, gradient_scales_;
  std::map<int, at::Tensor> scales_of_microbatches_;
  bool is_in_step_ = false;
  std::vector<Weight> weights_;
};

}  // namespace megalith

// FP8 recipes' state per chunk: eight-bit weights during a step and, for delayed scaling, past amaxes and their scales,
// per layer and operand (input, weight, gradient), or per expert of the whole model. After a pass, amaxes are reduced
// over tp, cp and dp, the history moves on, and
//
//   scale = max_fp8 / amax / 2^margin     amax: the newest of the history, or its largest
//
// or the old scale if amax is 0 or not finite; 1 at first. Inputs and weights move on after forward, gradients after
// backward, which reuses the forward's scales and records nothing recomputed. The host reads nothing. Source:
// Transformer Engine's DelayedScaling.
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
  bool takes_largest = false;  // instead of the newest
  int64_t margin = 0;
};

class AmaxLedger {
 public:
  int64_t add(int64_t count);  // returns the first
  void allocate(const at::TensorOptions& options, int64_t history_length);
  bool is_allocated() const { return scales.defined(); }
  void record(int64_t first, const at::Tensor& amax);
  void move_on(double largest, const DelayedScaling& how, const Groups& groups);

  int64_t size = 0;
  at::Tensor scales;
  at::Tensor history;  // (size, history_length), newest first
  at::Tensor amax;     // (size)
};

class Fp8Memory : public RecipeMemory {
 public:
  // keeps_weights: or only their scales.
  Fp8Memory(std::optional<DelayedScaling> delayed, double largest_gradient, bool keeps_weights);

  bool is_delayed() const { return delayed_.has_value(); }
  // has_transposed: also keeps the transposed weight.
  int64_t add_layer(const RecipeLayer& layer, bool has_transposed = false);

  // 0-d, or (local experts).
  at::Tensor scale(int64_t layer, OperandRole role);
  // Once per training step.
  bool is_recording(OperandRole role) const;
  void record(int64_t layer, OperandRole role, const at::Tensor& amax);

  struct Weight {
    Operand operand;  // without values unless these are kept
    at::Tensor amax;  // for delayed scaling
  };
  // Null outside of a step.
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
  int64_t num_copied_elements_ = 0;
  AmaxLedger forward_, backward_;
  std::vector<State> states_;

  Pass pass_ = Pass::kNone;
  // This pass's; undefined: the ledgers'.
  at::Tensor forward_scales_, gradient_scales_;
  std::map<int, at::Tensor> scales_of_microbatches_;
  bool is_in_step_ = false;
  std::vector<Weight> weights_;
};

}  // namespace megalith

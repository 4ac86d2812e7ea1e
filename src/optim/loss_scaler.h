// Loss scaling for fp16: the objective is multiplied by a number that lifts small gradients above fp16's smallest, and
// the optimizer divides by it. fp16 ends at 65504, so a scale that is too large shows as inf: that step is skipped.
//
// A fixed scale (loss_scale) stays. The dynamic one, per step:
//   not finite  good steps = 0, hysteresis -= 1; at 0 or below: scale = max(scale / 2, min)
//   finite      good steps += 1; at `window` of them: scale *= 2, hysteresis refilled, good steps = 0
// Only growth refills the hysteresis, so after its first overflows every further one halves the scale.
// Source: Megatron-LM megatron/core/optimizer/grad_scaler.py; Micikevicius et al. 2018, arXiv:1710.03740.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct LossScaleOptions {
  std::optional<double> loss_scale;  // fixed; without it the scale is dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;

  void visit(OptionVisitor& v);
};

// The rules between them; empty when all hold.
std::vector<UserError> check_loss_scale_options(const LossScaleOptions& options);

class LossScaler {
 public:
  // is_fp16  otherwise the scale is one and stays
  LossScaler(const LossScaleOptions& options, bool is_fp16);

  double scale() const { return scale_; }
  bool is_dynamic() const { return is_dynamic_; }
  // After each step: whether its gradient was finite. To be told the same on all ranks.
  void update(bool was_finite);

  // State by name, among the numbers of a checkpoint. What a checkpoint lacks (it was of another precision) keeps its
  // present value; a scale that is not dynamic has no state.
  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  LossScaleOptions options_;
  bool is_dynamic_;
  double scale_;
  int64_t num_good_steps_ = 0;
  int64_t hysteresis_left_;
};

}  // namespace megalith

// Loss scaling for fp16: a factor on the objective keeps small gradients representable; the optimizer divides by it.
// Too large a scale overflows (65504) to inf, and the step is skipped.
//
// A fixed scale (loss_scale) stays. The dynamic one, per step:
//   not finite  good steps = 0, hysteresis -= 1; at 0 or below: scale = max(scale / 2, min)
//   finite      good steps += 1; at `window` of them: scale *= 2, hysteresis refilled, good steps = 0
//
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
  std::optional<double> loss_scale;  // fixed; unset: dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;

  void visit(OptionVisitor& v);
};

// Broken rules between options; empty if none.
std::vector<UserError> check_loss_scale_options(const LossScaleOptions& options);

class LossScaler {
 public:
  // is_fp16  false: the scale is one
  LossScaler(const LossScaleOptions& options, bool is_fp16);

  double scale() const { return scale_; }
  bool is_dynamic() const { return is_dynamic_; }
  // After each step, with the same value on all ranks.
  void update(bool was_finite);

  // State by name, among a checkpoint's numbers; missing values stay unchanged.
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

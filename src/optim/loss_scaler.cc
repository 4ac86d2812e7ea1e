#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "core/json.h"

namespace megalith {
namespace {

constexpr const char* kScale = "loss_scale";
constexpr const char* kGoodSteps = "loss_scale_good_steps";
constexpr const char* kHysteresis = "loss_scale_hysteresis";
constexpr int64_t kMostSteps = int64_t{1} << 50;  // more than any run

}  // namespace

void LossScaleOptions::visit(OptionVisitor& v) {
  v.field("loss_scale", loss_scale, "Fixed loss scale of fp16; without it the scale is dynamic.").above(0);
  v.field("initial_loss_scale", initial_loss_scale, "Dynamic loss scale at the start.").above(0);
  v.field("min_loss_scale", min_loss_scale, "Lowest dynamic loss scale.").above(0);
  v.field("loss_scale_window", loss_scale_window, "Finite steps after which the dynamic loss scale doubles.")
      .unit("optimizer steps")
      .at_least(1);
  v.field("hysteresis", hysteresis,
          "The dynamic loss scale is halved from this overflow on; the count starts anew whenever the scale has grown.")
      .at_least(1);
}

std::vector<UserError> check_loss_scale_options(const LossScaleOptions& options) {
  std::vector<UserError> errors;
  if (!options.loss_scale && options.initial_loss_scale < options.min_loss_scale) {
    errors.emplace_back(fmt::format("initial_loss_scale {} is less than min_loss_scale {}", options.initial_loss_scale,
                                    options.min_loss_scale),
                        "raise initial_loss_scale or lower min_loss_scale");
  }
  return errors;
}

LossScaler::LossScaler(const LossScaleOptions& options, bool is_fp16)
    : options_(options),
      is_dynamic_(is_fp16 && !options.loss_scale),
      scale_(is_fp16 ? options.loss_scale.value_or(options.initial_loss_scale) : 1.0),
      hysteresis_left_(options.hysteresis) {}

void LossScaler::update(bool was_finite) {
  if (!is_dynamic_) return;
  if (!was_finite) {
    num_good_steps_ = 0;
    if (--hysteresis_left_ <= 0) scale_ = std::max(scale_ * 0.5, options_.min_loss_scale);
  } else if (++num_good_steps_ == options_.loss_scale_window) {
    num_good_steps_ = 0;
    hysteresis_left_ = options_.hysteresis;
    scale_ *= 2;
  }
}

void LossScaler::save(std::map<std::string, double>& numbers) const {
  if (!is_dynamic_) return;
  numbers[kScale] = scale_;
  numbers[kGoodSteps] = static_cast<double>(num_good_steps_);
  numbers[kHysteresis] = static_cast<double>(hysteresis_left_);
}

void LossScaler::load(const std::map<std::string, double>& numbers) {
  if (!is_dynamic_ || !numbers.contains(kScale)) return;
  const double scale = numbers.at(kScale);
  if (!(scale > 0) || !std::isfinite(scale)) {
    throw UserError(fmt::format("the checkpoint's {} is {}, expected a positive number", kScale, scale));
  }
  const auto count = [&](const char* name, int64_t otherwise) {
    const auto found = numbers.find(name);
    const std::string what = fmt::format("the checkpoint's {}", name);
    // Overflows beyond the hysteresis count below zero.
    return found == numbers.end() ? otherwise : whole_number(found->second, -kMostSteps, kMostSteps, what);
  };
  scale_ = scale;
  num_good_steps_ = count(kGoodSteps, num_good_steps_);
  hysteresis_left_ = count(kHysteresis, hysteresis_left_);
}

}  // namespace megalith

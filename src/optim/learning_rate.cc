#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/number_of.h"

namespace megalith {
namespace {

// Samples from whichever spelling is given.
std::optional<int64_t> in_samples(const std::optional<int64_t>& iters, const std::optional<int64_t>& samples,
                                  int64_t batch, const char* name, std::vector<UserError>& errors) {
  if (iters && samples && *iters > 0 && *samples > 0) {  // presets' 0 means unset
    errors.emplace_back(fmt::format("{0}_iters and {0}_samples are both given", name), "keep one of them");
  }
  if (samples && (*samples > 0 || !iters)) return samples;
  if (iters) return *iters * batch;
  return std::nullopt;
}

}  // namespace

void LearningRateOptions::visit(OptionVisitor& v) {
  v.group("Learning rate and weight decay");
  v.field("lr", lr, "Peak learning rate.").at_least(0);
  v.field("min_lr", min_lr, "Lowest learning rate of the decay.").at_least(0);
  v.field("decoupled_lr", decoupled_lr,
          "Peak learning rate of the embedding of tokens and of the head, which follows the same curve. Default: lr.")
      .at_least(0)
      .read_by(kTextModels);
  v.field("decoupled_min_lr", decoupled_min_lr, "Lowest learning rate beside decoupled_lr. Default: min_lr.")
      .at_least(0)
      .read_by(kTextModels);
  v.choice("lr_decay_style", lr_decay_style, {"constant", "linear", "cosine", "inverse-square-root", "WSD"},
           "Shape of the decay after the warm-up.");
  v.field("lr_decay_iters", lr_decay_iters, "Step at which the decay ends. Default: the length of the run.")
      .unit("optimizer steps")
      .at_least(1);
  v.field("lr_decay_samples", lr_decay_samples, "Sample at which the decay ends, instead of lr_decay_iters.")
      .unit("samples")
      .at_least(1);
  v.field("lr_warmup_iters", lr_warmup_iters, "Linear warm-up from lr_warmup_init to lr.")
      .unit("optimizer steps")
      .at_least(0);
  v.field("lr_warmup_samples", lr_warmup_samples, "Samples of the warm-up, instead of lr_warmup_iters.")
      .unit("samples")
      .at_least(0);
  v.field("lr_warmup_fraction", lr_warmup_fraction, "Length of the warm-up as a fraction of the decay's.").within(0, 1);
  v.field("lr_warmup_init", lr_warmup_init, "Learning rate at the start of the warm-up.").at_least(0);
  v.field("nemo_aligned_lr_warmup", nemo_aligned_lr_warmup,
          "The warm-up is a step ahead, as NeMo's: lr (step + 1) / (lr_warmup_iters + 1) from step 0 on.");
  v.choice("lr_wsd_decay_style", lr_wsd_decay_style, {"exponential", "linear", "cosine", "minus_sqrt"},
           "Shape of the final decay of WSD.");
  v.field("lr_wsd_decay_iters", lr_wsd_decay_iters, "Length of the final decay of WSD.")
      .unit("optimizer steps")
      .at_least(1);
  v.field("lr_wsd_decay_samples", lr_wsd_decay_samples,
          "Length of the final decay of WSD in samples, instead of lr_wsd_decay_iters.")
      .unit("samples")
      .at_least(1);
  v.field("weight_decay", weight_decay, "Decoupled weight decay; norms and biases have none.").at_least(0);
  v.field("start_weight_decay", start_weight_decay, "Weight decay at the start of its curve.").at_least(0);
  v.field("end_weight_decay", end_weight_decay, "Weight decay at the end of its curve.").at_least(0);
  v.choice("weight_decay_incr_style", weight_decay_incr_style, {"constant", "linear", "cosine"},
           "Shape of the weight decay's curve over the run.");
}

LearningRateCurve::LearningRateCurve(const LearningRateOptions& options, int64_t train_samples,
                                     int64_t global_batch_size)
    : options_(options), train_samples_(train_samples) {
  std::vector<UserError> errors;
  const LearningRateOptions& o = options_;
  decay_ =
      in_samples(o.lr_decay_iters, o.lr_decay_samples, global_batch_size, "lr_decay", errors).value_or(train_samples);
  const auto warmup = in_samples(o.lr_warmup_iters, o.lr_warmup_samples, global_batch_size, "lr_warmup", errors);
  if (o.lr_warmup_fraction && warmup.value_or(0) > 0) {
    errors.emplace_back("lr_warmup_fraction is given together with a warm-up length", "keep one of them");
  }
  warmup_ = o.lr_warmup_fraction ? static_cast<int64_t>(*o.lr_warmup_fraction * static_cast<double>(decay_))
                                 : warmup.value_or(0);
  if (o.min_lr > o.lr) {
    errors.emplace_back(fmt::format("min_lr {} is larger than lr {}", o.min_lr, o.lr), "lower min_lr or raise lr");
  }
  if (o.decoupled_min_lr && !o.decoupled_lr) {
    errors.emplace_back("decoupled_min_lr is read beside decoupled_lr", "give both, or neither");
  } else if (o.decoupled_lr && o.decoupled_min_lr.value_or(o.min_lr) > *o.decoupled_lr) {
    errors.emplace_back(fmt::format("the decay of decoupled_lr {} ends above it, at {}", *o.decoupled_lr,
                                    o.decoupled_min_lr.value_or(o.min_lr)),
                        "give a decoupled_min_lr below it");
  }
  const double peak = std::min(o.lr, o.decoupled_lr.value_or(o.lr));
  if (o.lr_warmup_init > peak) {
    errors.emplace_back(fmt::format("lr_warmup_init {} is larger than {} {}", o.lr_warmup_init,
                                    peak < o.lr ? "decoupled_lr" : "lr", peak),
                        "lower lr_warmup_init");
  }
  if (warmup_ >= decay_ && warmup_ > 0) {
    errors.emplace_back(
        fmt::format("the warm-up of {} is not shorter than the decay of {} (global batch {})",
                    number_of(warmup_, "sample", "samples"), number_of(decay_, "sample", "samples"), global_batch_size),
        "lower lr_warmup_iters, or raise lr_decay_iters or train_iters");
  }
  if (o.lr_decay_style == DecayStyle::kWsd) {
    const auto wsd =
        in_samples(o.lr_wsd_decay_iters, o.lr_wsd_decay_samples, global_batch_size, "lr_wsd_decay", errors);
    if (!wsd) errors.emplace_back("lr_decay_style WSD needs lr_wsd_decay_iters", "give the length of its final decay");
    wsd_decay_ = wsd.value_or(1);
  }
  if (o.weight_decay_incr_style == WeightDecayStyle::kConstant) {
    if (o.start_weight_decay || o.end_weight_decay) {
      errors.emplace_back("start_weight_decay and end_weight_decay need weight_decay_incr_style linear or cosine",
                          "set the style, or use only weight_decay");
    }
  } else if (!o.start_weight_decay || !o.end_weight_decay || *o.start_weight_decay > *o.end_weight_decay) {
    errors.emplace_back("a weight-decay curve needs start_weight_decay at most end_weight_decay",
                        "give both, or use weight_decay_incr_style constant");
  }
  if (o.nemo_aligned_lr_warmup) ahead_ = static_cast<double>(global_batch_size);
  if (!errors.empty()) throw UserErrors(std::move(errors));
}

double LearningRateCurve::learning_rate(int64_t consumed_samples, double peak, double lowest) const {
  const LearningRateOptions& o = options_;
  const double x = static_cast<double>(consumed_samples);
  const double warmup = static_cast<double>(warmup_), decay = static_cast<double>(decay_);
  if (warmup_ > 0 && consumed_samples <= warmup_) {
    return o.lr_warmup_init + (peak - o.lr_warmup_init) * (x + ahead_) / (warmup + ahead_);
  }
  if (o.lr_decay_style == DecayStyle::kConstant) return peak;
  if (consumed_samples > decay_) return lowest;
  if (o.lr_decay_style == DecayStyle::kInverseSquareRoot) {
    return std::max(lowest, peak * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(x, 1.0)));
  }
  const double r = decay_ == warmup_ ? 1.0 : (x - warmup) / (decay - warmup);
  double c = 1;
  switch (o.lr_decay_style) {
    case DecayStyle::kLinear:
      c = 1 - r;
      break;
    case DecayStyle::kCosine:
      c = 0.5 * (1 + std::cos(std::numbers::pi * r));
      break;
    case DecayStyle::kWsd: {
      const int64_t start = decay_ - wsd_decay_;
      if (consumed_samples <= start) break;
      const double s = static_cast<double>(consumed_samples - start) / static_cast<double>(wsd_decay_);
      switch (o.lr_wsd_decay_style) {
        case WsdStyle::kLinear:
          c = 1 - s;
          break;
        case WsdStyle::kCosine:
          c = 0.5 * (1 + std::cos(std::numbers::pi * s));
          break;
        case WsdStyle::kExponential:
          c = 2 * std::pow(0.5, s) - 1;
          break;
        case WsdStyle::kMinusSqrt:
          c = 1 - std::sqrt(s);
          break;
      }
      break;
    }
    case DecayStyle::kConstant:
    case DecayStyle::kInverseSquareRoot:
      break;
  }
  return lowest + c * (peak - lowest);
}

LearningRates LearningRateCurve::learning_rates(int64_t consumed_samples) const {
  LearningRates rates = learning_rate(consumed_samples);
  if (options_.decoupled_lr) {
    rates.of_vocabulary =
        learning_rate(consumed_samples, *options_.decoupled_lr, options_.decoupled_min_lr.value_or(options_.min_lr));
  }
  return rates;
}

double LearningRateCurve::weight_decay(int64_t consumed_samples) const {
  const LearningRateOptions& o = options_;
  if (o.weight_decay_incr_style == WeightDecayStyle::kConstant) return o.weight_decay;
  if (consumed_samples > train_samples_) return *o.end_weight_decay;
  const double r = static_cast<double>(consumed_samples) / static_cast<double>(std::max<int64_t>(train_samples_, 1));
  const double c =
      o.weight_decay_incr_style == WeightDecayStyle::kLinear ? r : 0.5 * (1 + std::cos(std::numbers::pi * (1 - r)));
  return *o.start_weight_decay + c * (*o.end_weight_decay - *o.start_weight_decay);
}

}  // namespace megalith

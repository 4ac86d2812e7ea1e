// Megatron-LM's curves of learning rate and weight decay, over the samples x consumed before a step.
//
//   warm-up  W > 0 and x <= W:  init + (lr - init) x / W; aligned with NeMo's, B of a step:  … (x + B) / (W + B)
//   constant lr;  x > D: min_lr;  with r = (x - W) / (D - W):
//   linear   min + (1 - r)(lr - min)            cosine  min + (1 + cos pi r)/2 (lr - min)
//   inverse-square-root  max(min, lr sqrt(max(W, 1)) / sqrt(max(x, 1)))
//   WSD      lr until S = D - decay samples, then decay in its own style
// Source: Megatron-LM megatron/core/optimizer_param_scheduler.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class DecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayStyle { kConstant, kLinear, kCosine };

struct LearningRateOptions {
  double lr = 1e-4;
  double min_lr = 0;
  // For the token embedding and the head; unset: lr and min_lr.
  std::optional<double> decoupled_lr, decoupled_min_lr;
  DecayStyle lr_decay_style = DecayStyle::kLinear;
  std::optional<int64_t> lr_decay_iters, lr_decay_samples;
  std::optional<int64_t> lr_warmup_iters, lr_warmup_samples;
  std::optional<double> lr_warmup_fraction;
  double lr_warmup_init = 0;
  bool nemo_aligned_lr_warmup = false;
  WsdStyle lr_wsd_decay_style = WsdStyle::kExponential;
  std::optional<int64_t> lr_wsd_decay_iters, lr_wsd_decay_samples;
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay, end_weight_decay;
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::kConstant;

  void visit(OptionVisitor& v);
};

// A step's learning rates; of_vocabulary: see ParameterOptions::is_of_vocabulary; of_adapters_b: of their B (LoRA+).
struct LearningRates {
  LearningRates(double lr) : lr(lr), of_vocabulary(lr), of_adapters_b(lr) {}
  double lr, of_vocabulary, of_adapters_b;
};

class LearningRateCurve {
 public:
  // train_samples  of the whole run. UserErrors with all conflicts.
  LearningRateCurve(const LearningRateOptions& options, int64_t train_samples, int64_t global_batch_size);

  double learning_rate(int64_t consumed_samples) const {
    return learning_rate(consumed_samples, options_.lr, options_.min_lr);
  }
  LearningRates learning_rates(int64_t consumed_samples) const;
  double weight_decay(int64_t consumed_samples) const;

  int64_t warmup_samples() const { return warmup_; }
  int64_t decay_samples() const { return decay_; }

 private:
  // The curve from `peak` to `lowest`.
  double learning_rate(int64_t consumed_samples, double peak, double lowest) const;

  LearningRateOptions options_;
  int64_t train_samples_, warmup_ = 0, decay_ = 0, wsd_decay_ = 0;
  double ahead_ = 0;  // samples
};

}  // namespace megalith

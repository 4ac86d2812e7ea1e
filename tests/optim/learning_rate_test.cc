// The curves of learning rate and weight decay at their boundaries.
#include "optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megalith {
namespace {

LearningRateOptions cosine() {
  LearningRateOptions o;
  o.lr = 1e-3;
  o.min_lr = 1e-4;
  o.lr_decay_style = DecayStyle::kCosine;
  o.lr_warmup_iters = 10;
  return o;
}

TEST(LearningRateCurve, WarmUpIsLinearInSamplesAndReachesThePeakAtItsEnd) {
  const LearningRateCurve curve(cosine(), /*train_samples=*/800, /*global_batch_size=*/8);
  EXPECT_EQ(curve.warmup_samples(), 80);
  EXPECT_DOUBLE_EQ(curve.learning_rate(0), 0);
  EXPECT_DOUBLE_EQ(curve.learning_rate(8), 1e-4);
  EXPECT_DOUBLE_EQ(curve.learning_rate(80), 1e-3);
  // NeMo's is lr (step + 1) / (steps + 1).
  LearningRateOptions ahead = cosine();
  ahead.nemo_aligned_lr_warmup = true;
  const LearningRateCurve nemo(ahead, 800, 8);
  for (int step = 0; step <= 10; ++step) EXPECT_DOUBLE_EQ(nemo.learning_rate(8 * step), 1e-3 * (step + 1) / 11);
}

TEST(LearningRateCurve, CosineIsHalfWayInTheMiddleAndMinimalAtTheEnd) {
  const LearningRateCurve curve(cosine(), 800, 8);
  EXPECT_NEAR(curve.learning_rate(440), 0.5 * (1e-3 + 1e-4), 1e-15);
  EXPECT_NEAR(curve.learning_rate(800), 1e-4, 1e-15);
  EXPECT_DOUBLE_EQ(curve.learning_rate(801), 1e-4);
}

TEST(LearningRateCurve, TheVocabularyFollowsTheSameCurveBetweenItsOwnEnds) {
  LearningRateOptions o = cosine();
  EXPECT_DOUBLE_EQ(LearningRateCurve(o, 800, 8).learning_rates(440).of_vocabulary, 0.5 * (1e-3 + 1e-4));
  o.decoupled_lr = 3e-3;
  const LearningRates middle = LearningRateCurve(o, 800, 8).learning_rates(440);
  EXPECT_NEAR(middle.lr, 0.5 * (1e-3 + 1e-4), 1e-15);
  EXPECT_NEAR(middle.of_vocabulary, 0.5 * (3e-3 + 1e-4), 1e-15);
  o.decoupled_min_lr = 2e-3;
  EXPECT_DOUBLE_EQ(LearningRateCurve(o, 800, 8).learning_rates(801).of_vocabulary, 2e-3);
  o.decoupled_min_lr = 4e-3;
  EXPECT_THROW(LearningRateCurve(o, 800, 8), UserErrors);
}

TEST(LearningRateCurve, LinearDecayWithoutWarmUpStartsAtThePeak) {
  LearningRateOptions o;
  o.lr = 2e-3;
  o.lr_decay_style = DecayStyle::kLinear;
  const LearningRateCurve curve(o, 100, 1);
  EXPECT_DOUBLE_EQ(curve.learning_rate(0), 2e-3);
  EXPECT_DOUBLE_EQ(curve.learning_rate(25), 1.5e-3);
  EXPECT_NEAR(curve.learning_rate(100), 0, 1e-18);
}

TEST(LearningRateCurve, ConstantStaysBehindTheEnd) {
  LearningRateOptions o;
  o.lr = 3e-4;
  o.lr_decay_style = DecayStyle::kConstant;
  o.lr_warmup_fraction = 0.1;
  const LearningRateCurve curve(o, 100, 1);
  EXPECT_DOUBLE_EQ(curve.learning_rate(5), 1.5e-4);
  EXPECT_DOUBLE_EQ(curve.learning_rate(1000), 3e-4);
}

TEST(LearningRateCurve, InverseSquareRootContinuesTheWarmUp) {
  LearningRateOptions o = cosine();
  o.lr_decay_style = DecayStyle::kInverseSquareRoot;
  o.min_lr = 0;
  const LearningRateCurve curve(o, 800, 8);
  EXPECT_DOUBLE_EQ(curve.learning_rate(320), 1e-3 * std::sqrt(80.0) / std::sqrt(320.0));
}

TEST(LearningRateCurve, WsdHoldsThePeakUntilItsFinalDecay) {
  LearningRateOptions o = cosine();
  o.lr_decay_style = DecayStyle::kWsd;
  o.lr_wsd_decay_style = WsdStyle::kMinusSqrt;
  o.lr_wsd_decay_iters = 25;
  o.min_lr = 0;
  const LearningRateCurve curve(o, 800, 8);
  EXPECT_DOUBLE_EQ(curve.learning_rate(600), 1e-3);
  EXPECT_NEAR(curve.learning_rate(650), 1e-3 * (1 - std::sqrt(0.25)), 1e-15);
  EXPECT_NEAR(curve.learning_rate(800), 0, 1e-15);
}

TEST(LearningRateCurve, WeightDecayGrowsLinearlyAndStaysAtItsEnd) {
  LearningRateOptions o;
  o.start_weight_decay = 0.0;
  o.end_weight_decay = 0.2;
  o.weight_decay_incr_style = WeightDecayStyle::kLinear;
  const LearningRateCurve curve(o, 100, 1);
  EXPECT_DOUBLE_EQ(curve.weight_decay(0), 0);
  EXPECT_DOUBLE_EQ(curve.weight_decay(50), 0.1);
  EXPECT_DOUBLE_EQ(curve.weight_decay(101), 0.2);
}

TEST(LearningRateCurve, EverythingWrongIsReportedTogether) {
  LearningRateOptions o;
  o.lr = 1e-4;
  o.min_lr = 1e-3;
  o.lr_warmup_iters = 100;
  o.lr_decay_style = DecayStyle::kWsd;
  o.start_weight_decay = 0.1;
  try {
    LearningRateCurve curve(o, 100, 1);
    FAIL() << "accepted";
  } catch (const UserErrors& errors) {
    EXPECT_EQ(errors.errors().size(), 4u) << errors.what();
  }
}

}  // namespace
}  // namespace megalith

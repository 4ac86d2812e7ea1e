// The dynamic loss scale, step by step, against Megatron-LM's rule.
#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megalith {
namespace {

LossScaleOptions small() {
  return {.loss_scale = {}, .initial_loss_scale = 16, .min_loss_scale = 2, .loss_scale_window = 3, .hysteresis = 2};
}

std::vector<double> scales_after(LossScaler& scaler, const std::string& steps) {  // '+' finite, '-' not
  std::vector<double> scales;
  for (const char step : steps) {
    scaler.update(step == '+');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, TheFirstOverflowIsBorneAndEachFurtherOneHalves) {
  LossScaler scaler(small(), true);
  EXPECT_EQ(scales_after(scaler, "-----"), (std::vector<double>{16, 8, 4, 2, 2}));  // down to the least
}

TEST(LossScaler, AFullWindowOfFiniteStepsDoubles) {
  LossScaler scaler(small(), true);
  EXPECT_EQ(scales_after(scaler, "+++++++"), (std::vector<double>{16, 16, 32, 32, 32, 64, 64}));
}

TEST(LossScaler, AnOverflowRestartsTheWindow) {
  LossScaler scaler(small(), true);
  EXPECT_EQ(scales_after(scaler, "++-+++"), (std::vector<double>{16, 16, 16, 16, 16, 32}));
}

TEST(LossScaler, HysteresisIsRefilledByGrowthAlone) {
  LossScaler scaler(small(), true);
  // One overflow is borne; two finite steps refill nothing, so the next halves. After growth one is borne again.
  EXPECT_EQ(scales_after(scaler, "-++-+++-"), (std::vector<double>{16, 16, 16, 8, 8, 8, 16, 16}));
}

TEST(LossScaler, AFixedScaleAndOtherPrecisionsStay) {
  LossScaleOptions options = small();
  EXPECT_EQ(LossScaler(options, false).scale(), 1);
  EXPECT_FALSE(LossScaler(options, false).is_dynamic());
  options.loss_scale = 128;
  LossScaler fixed(options, true);
  EXPECT_EQ(scales_after(fixed, "--++++"), (std::vector<double>(6, 128)));
  std::map<std::string, double> numbers;
  fixed.save(numbers);
  EXPECT_TRUE(numbers.empty());
}

TEST(LossScaler, ARestoredOneGoesOnAsTheSavedOne) {
  const std::string before = "-+", after = "-+++--+";
  LossScaler straight(small(), true), first(small(), true), second(small(), true);
  scales_after(straight, before);
  scales_after(first, before);
  std::map<std::string, double> numbers = {{"of somebody else", 1}};
  first.save(numbers);
  second.load(numbers);
  EXPECT_EQ(scales_after(second, after), scales_after(straight, after));
}

TEST(LossScaler, NumbersOfACheckpointThatCannotBeAreRefused) {
  const auto refuses = [](const std::string& name, double value) {
    std::map<std::string, double> numbers = {
        {"loss_scale", 8}, {"loss_scale_good_steps", 1}, {"loss_scale_hysteresis", -3}};
    LossScaler(small(), true).load(numbers);
    numbers[name] = value;
    try {
      LossScaler(small(), true).load(numbers);
    } catch (const UserError& error) {
      return error.message().starts_with("the checkpoint's " + name + " is ");
    }
    return false;
  };
  for (const double bad : {1e308, -1e308, 0.5, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(refuses("loss_scale_good_steps", bad)) << bad;
    EXPECT_TRUE(refuses("loss_scale_hysteresis", bad)) << bad;
  }
  for (const double bad : {0.0, -8.0, std::nan(""), HUGE_VAL}) EXPECT_TRUE(refuses("loss_scale", bad)) << bad;
}

TEST(LossScaler, ACheckpointOfAnotherPrecisionLeavesTheStart) {
  LossScaler scaler(small(), true);
  scaler.load({});
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(LossScaler, AStartBelowTheLeastIsRefused) {
  LossScaleOptions options = small();
  EXPECT_TRUE(check_loss_scale_options(options).empty());
  options.initial_loss_scale = 1;
  EXPECT_EQ(check_loss_scale_options(options).size(), 1u);
}

}  // namespace
}  // namespace megalith

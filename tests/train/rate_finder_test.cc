// What find_lr makes of losses.
#include "train/rate_finder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megalith {
namespace {

TEST(RateFinder, FindsWhereALossFallsFastestAndIsLowestAndEndsOnceItDiverges) {
  RateFinder finder({.find_lr = true, .find_lr_steps = 101, .find_lr_min = 1e-6, .find_lr_max = 1e-1});
  EXPECT_DOUBLE_EQ(finder.rate(1), 1e-6);
  EXPECT_NEAR(finder.rate(21), 1e-5, 1e-18);
  EXPECT_DOUBLE_EQ(finder.rate(101), 1e-1);
  EXPECT_FALSE(finder.found());
  // Falls like a logistic curve around 1e-4 and rises steeply from 1e-2 on.
  int64_t iteration = 1;
  for (; iteration <= 101 && !finder.has_diverged(); ++iteration) {
    const double x = std::log10(finder.rate(iteration));
    finder.add(iteration, 1 + 4 / (1 + std::exp(6 * (x + 4))) + std::exp(8 * (x + 2)));
  }
  EXPECT_LT(iteration, 101);
  ASSERT_TRUE(finder.found());
  // Smoothing over ten steps lags by about half a decade.
  EXPECT_NEAR(std::log10(finder.found()->steepest), -4 + 0.25, 0.25);
  EXPECT_NEAR(std::log10(finder.found()->lowest), -2, 0.5);
  EXPECT_NE(finder.picture().find("learning rate"), std::string::npos);
}

TEST(RateFinder, SaysThatALossDidNotFallAndThatItIsNoNumber) {
  RateFinder rises({.find_lr = true});
  for (int64_t i = 1; i <= 5; ++i) rises.add(i, static_cast<double>(i));
  EXPECT_FALSE(rises.found());
  EXPECT_NE(rises.text().find("did not fall"), std::string::npos);
  RateFinder finder({.find_lr = true});
  finder.add(1, 2);
  finder.add(2, std::nan(""));
  EXPECT_TRUE(finder.has_diverged());
}

}  // namespace
}  // namespace megalith

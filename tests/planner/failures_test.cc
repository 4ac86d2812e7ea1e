// Months on failing machines against arithmetic and published figures.
#include "planner/failures.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Failures, WithoutAnyOnlySavesCost) {
  FailureOptions options;
  options.gpu_mtbf_hours = 1e12;
  options.checkpoint_s = 50;
  const Goodput found = simulate_failures(options, 450);
  EXPECT_EQ(found.failures, 0);
  EXPECT_NEAR(found.effective, 0.9, 1e-3);
  EXPECT_NEAR(found.saving, 0.1, 1e-3);
}

TEST(Failures, EveryShareOfTheTimeHasACause) {
  FailureOptions options;
  options.gpu_mtbf_hours = 5000;
  options.slow_gpu_mtbf_hours = 20'000;
  for (const int64_t replicas : {1, 8}) {
    options.replicas = replicas;
    const Goodput found = simulate_failures(options, 300);
    EXPECT_GT(found.failures, 100);
    EXPECT_NEAR(found.effective + found.saving + found.lost_work + found.restarting + found.fewer_replicas +
                    found.stragglers, 1, 1e-6);
    EXPECT_EQ(simulate_failures(options, 300).effective, found.effective);
  }
}

// Both derivations assume saves much shorter than the time between failures.
TEST(Failures, TheBestIntervalIsYoungsAndDalys) {
  FailureOptions options;
  options.days = 1000;
  const Goodput best = find_best_interval(options);
  EXPECT_NEAR(best.effective, simulate_failures(options, optimal_interval_s(options)).effective, 2e-3);
  EXPECT_GT(best.interval_s, optimal_interval_s(options) / 2);
  EXPECT_LT(best.interval_s, optimal_interval_s(options) * 2);
}

// Llama 3 (arXiv:2407.21783): 419 interruptions in 54 days on 16,384 GPUs, more than 90 % effective.
TEST(Failures, Llama3TrainedNineTenthsOfItsTime) {
  FailureOptions options;
  options.days = 54;
  const Goodput found = find_best_interval(options);
  EXPECT_NEAR(static_cast<double>(found.failures), 419, 60);
  EXPECT_GT(found.effective, 0.9);
}

// FT-HSDP (arXiv:2602.00277): 10 minutes of stall become 3, and 44 % of effective time become 80 %. Failures every 18
// minutes and saves of 90 s are assumed here.
TEST(Failures, ReplicasThatGoOnKeepMostOfTheTime) {
  FailureOptions options;
  options.gpus = 100'000;
  options.gpu_mtbf_hours = 0.3 * 100'000;
  options.checkpoint_s = 90;
  options.restart_s = 600;
  EXPECT_NEAR(find_best_interval(options).effective, 0.44, 0.03);
  options.replicas = 32;
  options.replica_stall_s = 180;
  EXPECT_NEAR(simulate_failures(options, 3600).effective, 0.8, 0.05);
}

}  // namespace
}  // namespace megalith

// The size of the global batch, step by step, against Megatron-LM's calculator (numbers from running its rule by hand).
#include "train/batch_schedule.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

struct Built {
  Built(int64_t global, int64_t micro, int64_t dp, const std::vector<int64_t>& rampup, bool decreases = false)
      : schedule(global, micro, dp, rampup, decreases, errors) {}
  std::vector<UserError> errors;
  BatchSchedule schedule;
};

std::vector<int64_t> sizes(const BatchSchedule& schedule, int64_t steps) {
  std::vector<int64_t> found;
  for (int64_t step = 0, consumed = 0; step < steps; ++step) {
    found.push_back(schedule.samples(consumed));
    consumed += found.back();
  }
  return found;
}

TEST(BatchSchedule, WithoutARampEveryStepIsAlike) {
  const Built b(12, 2, 3, {});
  EXPECT_TRUE(b.errors.empty());
  EXPECT_TRUE(b.schedule.is_constant());
  EXPECT_EQ(sizes(b.schedule, 3), (std::vector<int64_t>{12, 12, 12}));
  EXPECT_EQ(b.schedule.num_microbatches(1000), 2);
  EXPECT_EQ(b.schedule.num_iterations(35), 2);
  EXPECT_EQ(b.schedule.consumed_by(2), 24);
}

// 4 -> 8 -> 12 -> 16 over 24 samples: three increments, one every 8 consumed samples.
TEST(BatchSchedule, GrowsByEqualIncrements) {
  const Built b(16, 2, 2, {4, 4, 24});
  EXPECT_TRUE(b.errors.empty());
  EXPECT_EQ(sizes(b.schedule, 6), (std::vector<int64_t>{4, 4, 8, 12, 16, 16}));
  // Within the ramp, its last sample and one past.
  EXPECT_EQ(b.schedule.samples(7), 4);
  EXPECT_EQ(b.schedule.samples(8), 8);
  EXPECT_EQ(b.schedule.samples(23), 12);
  EXPECT_EQ(b.schedule.samples(24), 16);
  EXPECT_EQ(b.schedule.samples(25), 16);
}

// Steps start at 0, 4, 8, 16 and, being 28 > 24, the ramp is over: whole batches of 16 for the rest.
TEST(BatchSchedule, CountsStepsAsMegatronDoes) {
  const Built b(16, 2, 2, {4, 4, 24});
  EXPECT_EQ(b.schedule.num_iterations(28), 4);
  EXPECT_EQ(b.schedule.num_iterations(28 + 31), 5);
  EXPECT_EQ(b.schedule.num_iterations(28 + 32), 6);
  EXPECT_EQ(b.schedule.num_iterations(10), 3);  // a step starts at 8, and goes beyond
  for (const int64_t samples : {28, 59, 60, 10}) {
    const int64_t steps = b.schedule.num_iterations(samples);
    int64_t sum = 0;
    for (const int64_t size : sizes(b.schedule, steps)) sum += size;
    EXPECT_EQ(b.schedule.consumed_by(steps), sum) << samples;
  }
}

TEST(BatchSchedule, RoundsDownWhenAsked) {
  const Built b(14, 2, 2, {6, 4, 20}, /*decreases=*/true);
  EXPECT_TRUE(b.errors.empty());
  EXPECT_EQ(sizes(b.schedule, 5), (std::vector<int64_t>{4, 4, 4, 8, 12}));  // of 6, 6, 6, 10, 14
  EXPECT_EQ(b.schedule.asked_samples(0), 6);
  EXPECT_EQ(b.schedule.samples(21), 12);
}

std::vector<BatchStep> parsed(const std::string& text, int64_t seq_length = 0) {
  std::vector<UserError> errors;
  const std::vector<BatchStep> steps = parse_batch_steps(text, seq_length, errors);
  EXPECT_EQ(steps.empty(), !errors.empty()) << text;
  return steps;
}

// Megatron-LM's rule by hand: the last threshold at or below what is consumed; a step goes beyond the next threshold.
TEST(BatchSchedule, GivenStepsBeginAtTheirTokens) {
  const std::vector<BatchStep> steps = parsed("0:4, 0.1K:8 240:12", /*seq_length=*/10);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].from, 10);
  std::vector<UserError> errors;
  const BatchSchedule schedule(12, 2, 2, {}, /*decreases=*/false, errors, steps);
  EXPECT_TRUE(errors.empty() && !schedule.is_constant());
  EXPECT_EQ(sizes(schedule, 7), (std::vector<int64_t>{4, 4, 4, 8, 8, 12, 12}));
  for (int64_t samples = 1; samples < 100; ++samples) {
    int64_t consumed = 0, iterations = 0;
    for (; consumed < samples; ++iterations) consumed += schedule.samples(consumed);
    EXPECT_EQ(schedule.num_iterations(samples), iterations) << samples;
    EXPECT_EQ(schedule.consumed_by(iterations), consumed) << samples;
  }
  EXPECT_EQ(parsed("0:768 250B:1536 1.5T:6144", 4096)[2].from, 1500000000000 / 4096);
  EXPECT_EQ(parsed("7:2 0:1")[1].samples, 2);  // sorted
  EXPECT_EQ(parsed("0:1 1.23T:1.1K")[1].from, 1230000000000);
  EXPECT_EQ(parsed("0:1 1.23T:1.1K")[1].samples, 1100);
  for (const char* wrong :
       {"", "5:4", "0:4 0:8", "0:0", "0", "x:4", "0:4 3:y", "0:4.5", "0:0.4", "0:4 2.5:8", "0:4 1.0001K:8"}) {
    EXPECT_TRUE(parsed(wrong).empty()) << wrong;
  }
  EXPECT_TRUE(parsed("0:4 5:8", 10).empty()) << "both begin with the first sample";
  const BatchSchedule uneven(6, 2, 2, {}, false, errors, parsed("0:4 8:6"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(std::string(errors[0].what()).find("step_batch_size_schedule's 6"), std::string::npos);
}

TEST(BatchSchedule, WhatCannotWorkIsRefused) {
  EXPECT_NE(std::string(Built(10, 2, 2, {}).errors.at(0).what()).find("use 8 or 12, or set"), std::string::npos);
  EXPECT_EQ(Built(2, 2, 2, {}, /*decreases=*/true).errors.size(), 1u);  // rounds to nothing
  EXPECT_EQ(Built(16, 2, 2, {4, 4}).errors.size(), 1u);                 // two numbers
  EXPECT_EQ(Built(16, 2, 2, {4, 5, 24}).errors.size(), 1u);             // does not arrive
  EXPECT_EQ(Built(16, 2, 2, {20, 4, 24}).errors.size(), 1u);            // starts above
  EXPECT_EQ(Built(16, 2, 2, {4, 4, 0}).errors.size(), 1u);              // no samples
  EXPECT_EQ(Built(16, 2, 2, {6, 5, 24}).errors.size(), 1u);             // 6 is no multiple of 4
  EXPECT_TRUE(Built(16, 2, 2, {16, 4, 24}).errors.empty());             // nothing to ramp
  EXPECT_TRUE(Built(16, 2, 2, {16, 4, 24}).schedule.is_constant());
}

}  // namespace
}  // namespace megalith

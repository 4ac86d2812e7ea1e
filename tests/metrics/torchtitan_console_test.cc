// torchtitan's lines, as the tools that read them look for them.
#include "metrics/torchtitan_console.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <sstream>
#include <vector>

namespace megalith {
namespace {

const std::string kPrefix = "[titan] 2026-01-31 12:00:00,250 - root - INFO - ";

// 250 ms a step, 16,384 tokens, 100 TFLOP, on 8 devices of 80 GiB: 8,192 tokens/s and 50 TFLOP/s a device.
StepRecord titan_step(int64_t iteration, int64_t reserved_gib) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 50;
  record.losses = {{"lm loss", 12.251037}, {"load_balancing_loss", 1.5}};
  record.grad_norm = 4.00123;
  record.elapsed_ms = 250;
  record.tokens = 16384;
  record.num_devices = 8;
  record.flops = 1e14;
  record.peak_flops_per_device = 1e14;
  record.memory_reserved_bytes = reserved_gib << 30;
  record.memory_total_bytes = int64_t{80} << 30;
  return record;
}

struct TitanPrinted {
  explicit TitanPrinted(int64_t log_interval)
      : sink(
            log_interval, [this](std::string_view line) { text += line; },
            [] { return std::string("2026-01-31 12:00:00,250"); }) {}
  std::vector<std::string> lines() const {
    std::vector<std::string> found;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) found.push_back(line);
    return found;
  }
  std::string text;
  TorchtitanConsole sink;
};

TEST(TorchtitanLines, AreThoseOfARun) {
  TitanPrinted printed(/*log_interval=*/10);
  for (int64_t i = 1; i <= 12; ++i) printed.sink.on_step(titan_step(i, i == 5 ? 40 : 20));
  ValidationRecord validation;
  validation.iteration = 12;
  validation.losses = {{"lm loss", 2.31004}};
  printed.sink.on_validation(validation);
  printed.sink.on_end();
  const std::vector<std::string> expected = {
      kPrefix + "Training starts at step 1",
      kPrefix +
          "step:  1  loss: 12.25104  grad_norm:  4.0012  memory: 20.00GiB(25.00%)  tps: 8,192  tflops: 50.00  "
          "mfu: 50.00%",
      // The most that was taken since the line before, though less is taken now.
      kPrefix +
          "step: 10  loss: 12.25104  grad_norm:  4.0012  memory: 40.00GiB(50.00%)  tps: 8,192  tflops: 50.00  "
          "mfu: 50.00%",
      kPrefix + "validate step: 12  loss:  2.3100  memory: 20.00GiB(25.00%)", kPrefix + "Training completed"};
  EXPECT_EQ(printed.lines(), expected);
}

TEST(TorchtitanLines, AResumedRunSaysWhereItBegins) {
  TitanPrinted printed(1);
  printed.sink.on_step(titan_step(31, 20));
  EXPECT_EQ(printed.lines().at(0), kPrefix + "Training starts at step 31");
  EXPECT_NE(printed.lines().at(1).find("step: 31  "), std::string::npos);
}

TEST(TorchtitanLines, WhatIsNotKnownIsNotInvented) {
  TitanPrinted printed(1);
  StepRecord record = titan_step(1, 0);
  record.peak_flops_per_device = 0;
  record.memory_total_bytes = 0;
  record.grad_norm.reset();
  record.losses = {{"lm loss", std::numeric_limits<double>::quiet_NaN()}};
  printed.sink.on_step(record);
  EXPECT_EQ(printed.lines().at(1), kPrefix +
                                       "step:  1  loss:      nan  grad_norm:     nan  memory:  0.00GiB(0.00%)  "
                                       "tps: 8,192  tflops: 50.00  mfu: N/A");
}

// The benchmark scripts take the means of what these find.
TEST(TorchtitanLines, RatesAreFoundByThePatternsOfBenchmarks) {
  TitanPrinted printed(1);
  StepRecord record = titan_step(1, 20);
  record.tokens *= 1000;
  record.flops *= 100;
  printed.sink.on_step(record);
  std::smatch found;
  const std::string line = printed.lines().at(1);
  ASSERT_TRUE(std::regex_search(line, found, std::regex(R"(tps: +([0-9,]+) )")));
  EXPECT_EQ(found[1], "8,192,000");
  ASSERT_TRUE(std::regex_search(line, found, std::regex(R"(tflops: +([0-9,.]+) )")));
  EXPECT_EQ(found[1], "5,000.00");
}

TEST(TorchtitanLines, TheClockIsOfItsForm) {
  EXPECT_TRUE(std::regex_match(wall_clock_text(), std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})")));
}

}  // namespace
}  // namespace megalith

// doctor --bench: what kinds of GPUs should reach, what is measured here, and how the two are compared.
#include "verify/speed_check.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace megalith {
namespace {

TEST(SpeedCheck, TheNameDecidesAndThenTheArchitecture) {
  EXPECT_EQ(expected_speeds("AMD Instinct MI325X", "gfx942")->kind, "MI325X");
  EXPECT_EQ(expected_speeds("AMD GPU", "gfx942")->kind, "MI300X");
  EXPECT_EQ(expected_speeds("", "gfx90a")->kind, "MI250");
  EXPECT_EQ(expected_speeds("NVIDIA H100 PCIe", "sm_90")->kind, "H100 PCIe");
  EXPECT_EQ(expected_speeds("NVIDIA H200", "sm_90")->kind, "H200");
  EXPECT_EQ(expected_speeds("NVIDIA GB200", "sm_100")->kind, "GB200");
  EXPECT_FALSE(expected_speeds("NVIDIA GeForce GTX 1080", "sm_61").has_value());
  EXPECT_FALSE(expected_speeds("", "").has_value());
}

TEST(SpeedCheck, PublishedFiguresStandBeforeSharesOfTheDataSheet) {
  const ExpectedSpeeds mi300x = *expected_speeds("AMD Instinct MI300X", "gfx942");
  EXPECT_DOUBLE_EQ(*mi300x.triad, 3885.301);
  EXPECT_DOUBLE_EQ(*mi300x.all_reduce_bus, 304);
  EXPECT_DOUBLE_EQ(*mi300x.fp32_tflops, 94.1);
  EXPECT_NEAR(*mi300x.bf16_tflops, 1307.4 * 0.45, 0.1);
  const ExpectedSpeeds h200 = *expected_speeds("NVIDIA H200", "sm_90");
  EXPECT_DOUBLE_EQ(*h200.copy, 4800 * 0.7);
  EXPECT_FALSE(h200.fp32_tflops.has_value());
}

TEST(SpeedCheck, TheProcessorIsMeasured) {
  // Small, so that the test is quick; how fast it is does not matter.
  const SpeedSizes sizes{.bf16_side = 33, .fp32_side = 65, .array_elements = 1021};
  std::vector<SpeedRow> rows = measure_speeds(at::kCPU, sizes, /*with_peer=*/true);
  std::vector<std::string> names;
  for (const SpeedRow& row : rows) {
    names.push_back(row.what);
    EXPECT_GT(row.measured, 0) << row.what;
    EXPECT_FALSE(row.expected.has_value());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"matrix product bf16, 33 x 33 x 33", "matrix product fp32, 65 x 65 x 65",
                                      "memory copy", "memory scale", "memory add", "memory triad", "memory dot"}));
  add_expected(rows, *expected_speeds("AMD Instinct MI300X", "gfx942"));
  for (const SpeedRow& row : rows) EXPECT_TRUE(row.expected.has_value()) << row.what;
  EXPECT_DOUBLE_EQ(*rows.back().expected, 3660.781);
}

TEST(SpeedCheck, WhatStaysBelowIsAWarning) {
  const std::vector<SpeedRow> rows = {{"memory copy", "GB/s", 4200, 4177.285},
                                      {"memory dot", "GB/s", 3000, 3660.781},
                                      {"copy", "GB/s", 3, std::nullopt}};
  const Findings findings = check_speeds(rows);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].level, FindingLevel::kOk);
  EXPECT_EQ(findings[1].level, FindingLevel::kWarning);
  EXPECT_EQ(findings[1].found, "3000 GB/s; such a GPU should reach 3661");
  EXPECT_FALSE(findings[1].remedy.empty());
  EXPECT_EQ(findings[2].level, FindingLevel::kOk);
  const std::string text = speeds_text(rows, "GPU 0, MI300X");
  EXPECT_NE(text.find("(GPU 0, MI300X)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("3000          3661\n"), std::string::npos) << text;
  EXPECT_NE(text.find("            -\n"), std::string::npos) << "nothing is known: " << text;
}

TEST(SpeedCheck, TheLargestAllReduceCountsAndOnlyEightRanksAreComparable) {
  const auto bandwidth = [](int64_t bytes, double bus) {
    return Bandwidth{CollectiveKind::kAllReduce, bytes, 1, bus / 1.75, bus};
  };
  std::vector<Bandwidth> rows = {bandwidth(1 << 10, 1e9),
                                 bandwidth(int64_t{1} << 30, 310e9),
                                 {CollectiveKind::kAllGather, int64_t{1} << 40, 1, 1, 1}};
  const auto expected = expected_speeds("AMD Instinct MI300X", "gfx942");
  const std::optional<SpeedRow> row = all_reduce_row(rows, 8, 8, expected);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->what, "all_reduce of 1.00 GiB, 8 ranks, bus");
  EXPECT_DOUBLE_EQ(row->measured, 310);
  EXPECT_EQ(row->expected, 304);
  EXPECT_FALSE(all_reduce_row(rows, 4, 4, expected)->expected.has_value());
  EXPECT_FALSE(all_reduce_row(rows, 16, 8, expected)->expected.has_value());
  rows.erase(rows.begin() + 1);
  EXPECT_FALSE(all_reduce_row(rows, 8, 8, expected)->expected.has_value()) << "1 KiB is a matter of latency";
  EXPECT_FALSE(all_reduce_row({}, 8, 8, expected).has_value());
  EXPECT_FALSE(all_reduce_row(rows, 1, 1, expected).has_value());
}

}  // namespace
}  // namespace megalith

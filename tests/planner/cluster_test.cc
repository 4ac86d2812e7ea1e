// The machine of a plan: the table that ships, files of one's own, and what is refused by name.
#include "planner/cluster.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "device/peak_flops.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

std::filesystem::path configs() { return test::source_dir() / "configs"; }

std::string refusal_of_cluster(const std::string& text) {
  try {
    read_cluster(text, configs());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, TheShippedTableHasEveryChipWithItsSources) {
  const std::vector<ChipRates> chips = load_chips(configs() / "clusters.yaml");
  std::vector<std::string> names;
  for (const ChipRates& chip : chips) {
    names.push_back(chip.name);
    EXPECT_FALSE(chip.sources.empty()) << chip.name;
    // The dry run's table, where it knows the chip.
    if (const auto known = known_gpu(chip.name)) {
      EXPECT_EQ(static_cast<int64_t>(chip.memory_gib), known->memory_bytes >> 30) << chip.name;
      const auto peak = known_peak_flops(known->name, known->architecture, at::kBFloat16);
      EXPECT_NEAR(chip.tflops, *peak / 1e12, 0.01) << chip.name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"h100", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x",
                                             "mi350x", "mi355x"}));
}

TEST(Cluster, AFormNamesChipAndSizes) {
  const Cluster cluster = read_cluster("H200:8x16", configs());
  EXPECT_EQ(cluster.world_size(), 128);
  EXPECT_EQ(cluster.chip.name, "h200");
  EXPECT_EQ(read_cluster("gb200:72", configs()).world_size(), 72);
}

TEST(Cluster, AFileThatCalibrationWritesReadsBack) {
  const test::TemporaryFolder folder;
  ChipRates chip = load_chips(configs() / "clusters.yaml").front();
  chip.name = "mine";
  chip.product_share = 0.5;
  const auto file = folder.path() / "mine.yaml";
  std::ofstream(file) << chip_yaml(chip);
  const Cluster cluster = read_cluster(file.string() + ":4x2", configs());
  EXPECT_EQ(cluster.world_size(), 8);
  EXPECT_EQ(cluster.chip.product_share, 0.5);
  EXPECT_EQ(cluster.chip.sources, chip.sources);
}

TEST(Cluster, WhatIsWrongIsRefusedByName) {
  for (const char* text : {"h200", "h200:", ":8", "h200:0x2", "h200:8x", "h200:8x2x2", "h200:8x99999999", "h200:-8"}) {
    EXPECT_NE(refusal_of_cluster(text).find("CHIP:GPUSxNODES"), std::string::npos) << text << ": " << refusal_of_cluster(text);
  }
  EXPECT_NE(refusal_of_cluster("h900:8").find("use one of h100, h200"), std::string::npos);
  EXPECT_NE(refusal_of_cluster("h200:16").find("8 GPUs a node"), std::string::npos);
  const test::TemporaryFolder folder;
  const auto written = [&](const std::string& text) {
    const auto file = folder.path() / "bad.yaml";
    std::ofstream(file) << text;
    return refusal_of_cluster(file.string() + ":1");
  };
  EXPECT_NE(written("").find("names no chip"), std::string::npos);
  EXPECT_NE(written("x: 3\n").find("x has no rates"), std::string::npos);
  const std::string several = written("x:\n  tflop: 3\n  memory_gib: -1\n");
  for (const char* part : {"unknown rate 'tflop'", "tflops", "memory_gib", "above 0", "has no link_gb_per_s"}) {
    EXPECT_NE(several.find(part), std::string::npos) << part << " is not in " << several;
  }
}

}  // namespace
}  // namespace megalith

// How often a rank's host waits in a step of a parallel layout: the second table of docs/gpu.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "layouts_pretend/devices_of_ranks.h"
#include "support/source_dir.h"

namespace megalith {
namespace {

using namespace test;

struct CountedLayout {
  std::string name;  // as in the table
  Layout layout;     // of two microbatches and two layers
  int64_t most = 0;  // waits of a rank in a step: a number may only fall
};

std::vector<CountedLayout> counted_layouts() {
  const TinyRun dense, shared{.sequence = 8}, experts{.family = "mixtral"};
  TinyRun four;
  four.num_layers = 4;
  return {
      {"tensor parallel", {.tp = 2, .micro_batch = 4, .task = dense}, 0},
      {"tensor and sequence parallel", {.tp = 2, .is_sequence_parallel = true, .micro_batch = 4, .task = dense}, 0},
      {"pipeline", {.pp = 2, .micro_batch = 4, .task = dense}, 0},
      {"interleaved pipeline",
       {.pp = 2, .micro_batch = 4, .task = four, .pipeline = {.num_virtual_stages_per_pipeline_rank = 2}},
       0},
      {"context parallel, ring", {.cp = 2, .micro_batch = 4, .task = shared, .cp_comm_type = {"p2p"}}, 0},
      {"context parallel, by heads", {.cp = 2, .micro_batch = 4, .task = shared, .cp_comm_type = {"a2a"}}, 0},
      {"context parallel, gathered", {.cp = 2, .micro_batch = 4, .task = shared, .cp_comm_type = {"all_gather"}}, 0},
      {"data parallel", {.dp = 2, .micro_batch = 2, .task = dense}, 0},
      {"data parallel, distributed optimizer", {.dp = 2, .micro_batch = 2, .task = dense, .data_parallel = zero1()}, 0},
      {"data parallel, FSDP", {.dp = 2, .micro_batch = 2, .task = dense, .data_parallel = fsdp()}, 0},
      {"expert parallel", {.dp = 2, .micro_batch = 2, .task = experts, .ep = 2}, 4},
      {"expert parallel, gathered",
       {.dp = 2, .micro_batch = 2, .task = experts, .ep = 2, .dispatcher = "allgather"},
       4},
  };
}

TEST(WaitsOfLayouts, AreNoMoreThanTheTableSays) {
  for (const CountedLayout& counted : counted_layouts()) {
    const WaitsOfStep waits = waits_of_step(counted.layout, Kernels::kFused);
    std::printf("%s: %ld of %ld%s\n", counted.name.c_str(), static_cast<long>(waits.count),
                static_cast<long>(counted.most), waits.text.c_str());
    EXPECT_LE(waits.count, counted.most) << counted.name << waits.text;
  }
}

TEST(WaitsOfLayouts, AreInTheTableOfThePage) {
  std::ifstream file(source_dir() / "docs/gpu.md");
  std::map<std::string, int64_t> rows;
  const std::regex row(R"(^\| ([a-zA-Z ,]+) \| (\d+) a rank \|.*$)");
  std::string line;
  while (std::getline(file, line)) {
    std::smatch found;
    if (std::regex_match(line, found, row)) rows[found[1]] = std::stoll(found[2]);
  }
  std::map<std::string, int64_t> expected;
  for (const CountedLayout& counted : counted_layouts()) expected[counted.name] = counted.most;
  EXPECT_EQ(rows, expected);
}

}  // namespace
}  // namespace megalith

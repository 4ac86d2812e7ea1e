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
  std::string words;
  int64_t most = 0;  // waits of a rank in a step: a number may only fall
};

std::vector<CountedLayout> counted_layouts() {
  return {{"tensor parallel", "untied tp2", 0},
          {"tensor and sequence parallel", "untied tp2 sp", 0},
          {"pipeline", "untied pp2", 0},
          {"interleaved pipeline", "untied pp2 virtual", 0},
          {"context parallel, ring", "untied cp2", 0},
          {"context parallel, by heads", "untied cp2 heads", 0},
          {"context parallel, gathered", "untied cp2 gathered", 0},
          {"data parallel", "untied dp2", 0},
          {"data parallel, distributed optimizer", "untied dp2 zero", 0},
          {"data parallel, FSDP", "untied dp2 fsdp", 0},
          {"expert parallel", "mixtral dp2 ep2", 4},
          {"expert parallel, gathered", "mixtral dp2 ep2 by_gather", 4}};
}

TEST(WaitsOfLayouts, AreNoMoreThanTheTableSays) {
  for (const CountedLayout& counted : counted_layouts()) {
    LayoutRow row(counted.words);
    row.compute_in(at::kFloat, Kernels::kFused);
    const WaitsOfStep waits = waits_of_step(row);
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

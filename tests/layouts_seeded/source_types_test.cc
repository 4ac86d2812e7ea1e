// Mistakes of the source that change a distribution are found by types, without a number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "layouts/mistakes.h"
#include "layouts_seeded/seeded.h"

namespace megalith {
namespace {

using namespace test;

// These change what ranks hold of a tensor. The others of seed_mistakes.py are of an index, an order, a key of random
// numbers, a scale or a formula, or do something at the wrong time: arithmetic, which types do not see.
const std::vector<std::string> kOfSources = {
    "row linear: bias added on every tp rank",
    "norm weight not marked as partial over tp",
    "router weight not marked as partial over tp",
    "tied weight reduced after its first contribution",
    "experts: those that lie as dense layers reduced as if spread, and the other way round",
    "experts: the first part of an expert on every rank",
    "adapters of experts: what is cut taken for whole, and the other way round",
    "adapters: B cut along the wrong axis",
    "adapters: lengths of a row layer's own columns",
    "learned positions: the table not summed over its stages",
    "learned rows: the gradient of only a tp rank's tokens",
    "retrieval: the gradient of a text from its own rank's questions only",
    "capacity: decided by each rank for its own tokens",
    "eight bits: gradients with a scale of the rank's part",
};

// Cut where another axis or length is as right to types, decided by numbers, or a scale.
const std::set<std::string> kNotByTypes = {
    "adapters: B cut along the wrong axis",
    "adapters: lengths of a row layer's own columns",
    "capacity: decided by each rank for its own tokens",
    "eight bits: gradients with a scale of the rank's part",
};

TEST(SeededSource, MistakesThatChangeADistributionAreFoundByTypes) {
  std::vector<LayoutRow> rows = rows_of("!");
  // A mistake that is planted in Flux rolls tensors, which those of the meta device do not.
  std::erase_if(rows, [](const LayoutRow& row) { return row.text().starts_with("flux"); });
  for (LayoutRow& row : rows) EXPECT_TRUE(check_types(row.layout()).is_ok()) << row.text();
  for (const std::string& name : kOfSources) {
    const auto place = std::ranges::find(seeded::kNames, name);
    ASSERT_NE(place, seeded::kNames.end()) << name;
    seeded::g_mistake = static_cast<int>(place - seeded::kNames.begin());
    const std::string found = found_by_types(rows, {}, std::nullopt);
    seeded::g_mistake = -1;
    EXPECT_EQ(found.empty(), kNotByTypes.contains(name)) << name;
    std::printf("  %s\n    %s\n", name.c_str(), found.empty() ? "not by types" : found.c_str());
  }
}

}  // namespace
}  // namespace megalith

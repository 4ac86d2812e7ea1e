// The matrix sees mistakes: each is put into a run once, and a layout must differ from the single rank.
#include "layouts/mistakes.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

using namespace test;

TEST(MatrixMistakes, AreAllSeen) {
  const std::vector<Mistake> mistakes = seeded_mistakes();
  EXPECT_GE(mistakes.size(), 15U);
  for (const Mistake& mistake : mistakes) expect_caught(mistake);
}

// Or any difference would count as seen.
TEST(MatrixMistakes, AreNotSeenWhereThereIsNone) {
  for (const Layout& layout : layouts_for_mistakes()) {
    const Mistake none{.name = "none", .hooks = {.change_groups = [](Groups&) {}}};
    const RankOutcome& expected = single_rank_outcome(layout, {}, 2);
    EXPECT_EQ(compare(layout, run_layout(layout, {}, 2, &none), expected, 1e-9).first_failure, "");
  }
}

}  // namespace
}  // namespace megalith

// See layout_list.h.
#include "layouts/layout_list.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace megalith::test {

void expect_mistake_is_seen(const Layout& layout, const Mistake& mistake) {
  const RankOutcome& expected = single_rank_outcome(layout, {}, 2);
  double worst = 1;
  try {
    worst = compare(layout, run_layout(layout, {}, 2, &mistake), expected, 1e-9).worst;
  } catch (const std::exception& error) {
    std::printf("  %s: %s\n", mistake.name.c_str(), error.what());
  }
  EXPECT_GT(worst, 1e-5) << mistake.name;
}

}  // namespace megalith::test

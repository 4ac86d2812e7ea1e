// Mistakes built into copies of src/nn and src/optim: the matrix sees them as well.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "layouts/mistakes.h"
#include "layouts_seeded/seeded.h"
#include "nn/linear.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

class SeededMistake {
 public:
  explicit SeededMistake(int number) { seeded::g_mistake = number; }
  ~SeededMistake() { seeded::g_mistake = -1; }
};

// No model family has a row linear with a bias yet: it is compared by itself. The output on two ranks and on one.
double row_linear_difference() {
  const at::Tensor x = at::linspace(-1, 1, 6 * 8, at::kDouble).view({6, 8});
  const auto output = [&](const Groups& groups) {
    const LayerContext context{.groups = &groups, .dtype = at::kDouble, .kernels = Kernels::kReference};
    Linear layer(context, "row", 8, 5, {.role = LinearRole::kRow, .has_bias = true});
    load(layer, golden_weights(layer, at::kDouble));
    const int64_t columns = 8 / groups.tp->size();
    return layer.forward(x.narrow(1, groups.tp->rank() * columns, columns).contiguous());
  };
  const at::Tensor expected = output(Groups::single());
  double difference = 0;
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    const at::Tensor y = output(groups);
    if (groups.rank == 0) difference = relative_difference(y, expected);
  });
  return difference;
}

TEST(SeededSource, IsRightUntilAMistakeIsChosen) {
  for (const Layout& layout : layouts_for_mistakes()) {
    const RankOutcome& expected = single_rank_outcome(layout, {}, 2);
    EXPECT_EQ(compare(layout, run_layout(layout, {}, 2), expected, 1e-9).first_failure, "");
  }
  EXPECT_LT(row_linear_difference(), 1e-12);
}

TEST(SeededSource, TheMatrixSeesEveryMistake) {
  // The single rank's numbers come first: one rank must not share the mistake.
  for (const Layout& layout : layouts_for_mistakes()) (void)single_rank_outcome(layout, {}, 2);
  ASSERT_FALSE(seeded::kNames.empty());
  for (size_t number = 0; number < seeded::kNames.size(); ++number) {
    const SeededMistake at_work(static_cast<int>(number));
    if (seeded::kNames[number].starts_with("row linear")) {
      EXPECT_GT(row_linear_difference(), 1e-2);
      std::printf("  %s\n    a row linear with a bias on two ranks\n", seeded::kNames[number].c_str());
      continue;
    }
    Mistake mistake{.name = seeded::kNames[number]};
    if (mistake.name.starts_with("Muon")) mistake.rule = OptimizerKind::kMuon;
    expect_caught(mistake);
  }
}

}  // namespace
}  // namespace megalith

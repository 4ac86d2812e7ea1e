// Mistakes built into copies of src/nn and src/optim are seen, too: by `megalith doctor --parallel`, whose one rank
// computes with them, or against a right one rank where the mistake is in a formula.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "kinds/encoder/masked_samples.h"
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

// The check's rows all have labels of sentences: these ones lack a third.
std::string difference_with_rows_unlabelled() {
  static LayoutRow row("bert cp2");
  const CheckHooks hooks{.change_batches = [](std::vector<Batch>& batches, const Groups&) {
    for (Batch& batch : batches) {
      batch.at(field::kSentenceLabels).masked_fill_(batch.at(field::kSampleIndex).remainder(3) == 0, -1);
    }
  }};
  static const RankOutcome right = run_as_threads(row.one_rank(), hooks)[0];
  return compare_with_one_rank(run_as_threads(row.layout(), hooks), 0, right, {.floor = 1e-4}).first_failure;
}

TEST(SeededSource, IsRightUntilAMistakeIsChosen) {
  for (LayoutRow& row : rows_of("!")) EXPECT_EQ(row.difference(), "") << row.text();
  EXPECT_LT(row_linear_difference(), 1e-12);
  EXPECT_EQ(difference_with_rows_unlabelled(), "");
}

TEST(SeededSource, EveryMistakeIsSeen) {
  std::vector<LayoutRow> rows = rows_of("!");
  for (LayoutRow& row : rows) (void)row.expected();  // right ones, for formulas
  (void)difference_with_rows_unlabelled();
  ASSERT_FALSE(seeded::kNames.empty());
  for (const MistakeSource source : {MistakeSource::kFormula, MistakeSource::kBuild}) {
    for (size_t number = 0; number < seeded::kNames.size(); ++number) {
      Mistake mistake{.name = seeded::kNames[number], .source = source};
      const bool is_formula =
          mistake.name.find("'s formula") != std::string::npos || mistake.name.starts_with("eight bits");
      if (is_formula != (source == MistakeSource::kFormula)) continue;
      const SeededMistake at_work(static_cast<int>(number));
      if (mistake.name.starts_with("row linear")) {
        EXPECT_GT(row_linear_difference(), 1e-2);
        continue;
      }
      if (mistake.name.find("label -1") != std::string::npos) {
        EXPECT_NE(difference_with_rows_unlabelled(), "");
        continue;
      }
      if (mistake.name.starts_with("Muon")) mistake.rule = OptimizerKind::kMuon;
      expect_seen(mistake, rows);
    }
  }
}

}  // namespace
}  // namespace megalith

// Every row of rows.txt trains as one rank does, and what a row keeps apart stays apart.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "comm/thread_world.h"
#include "layouts/mistakes.h"
#include "layouts/rows.h"
#include "verify/document_check.h"

namespace megalith {
namespace {

using namespace test;

void expect_rows_train_as_one_rank(std::string_view section) {
  for (LayoutRow& row : rows_of(section)) {
    const std::unique_ptr<ParallelCheck> check = row.fresh_check();
    const ParallelReport report = check->run_as_threads();
    EXPECT_EQ(report.failure, "") << row.text() << ": " << check->toy().text();
    EXPECT_LT(report.worst, 1e-9) << row.text();
    EXPECT_GE(report.num_gradients, 6) << row.text();
    EXPECT_GE(report.num_parameters, report.num_gradients) << row.text();
    EXPECT_GE(report.num_steps, 3) << row.text();
    std::printf("  %-60s %.1g\n", row.text().c_str(), report.worst);
  }
}

TEST(DenseRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Dense"); }
TEST(ContextRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Context"); }
TEST(PipelineRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Pipeline"); }
TEST(ExpertRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Experts"); }
TEST(EncoderRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Encoders"); }
TEST(T5Rows, TrainAsOneRank) { expect_rows_train_as_one_rank("T5"); }
TEST(FluxRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Flux"); }
TEST(AdapterRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Adapters"); }
TEST(FrozenRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Frozen"); }
TEST(OptimizerRows, TrainAsOneRank) { expect_rows_train_as_one_rank("Optimizers"); }

// In float64 only: rounding to eight bits makes a float32 difference a step of eight bits.
TEST(EightBitRows, TrainAsOneRank) {
  for (LayoutRow& row : rows_of("EightBits")) EXPECT_EQ(row.difference(), "") << row.text();
}

// Those rows agree because eight-bit rounding is the same, not because there is none.
TEST(EightBitRows, AreFeltInTheLosses) {
  LayoutRow rounded("untied hybrid"), plain("untied");
  const double with = rounded.expected().losses.at(0), without = plain.expected().losses.at(0);
  EXPECT_GT(std::abs(with - without), 1e-6 * without);
  EXPECT_LT(std::abs(with - without), 0.05 * without);
}

TEST(DocumentRows, AreFoundToTouchWhereTheyAreNotToldApart) {
  const CheckHooks blind{.change_batches = [](std::vector<Batch>& batches, const Groups&) {
    for (Batch& batch : batches) batch.at(field::kDocumentIds).zero_();
  }};
  for (const std::string words : {"", "tp2 sp", "pp2", "cp2", "cp2 heads", "cp2 gathered", "cp4 both"}) {
    LayoutRow row("llama docs " + words);
    const auto run = [&](const SilentDocument& silent) { return run_as_threads(row.layout(), blind, silent); };
    EXPECT_NE(find_touching_documents(run, 0, 1e-3), "") << words;
  }
}

TEST(Mistakes, AreAllSeen) {
  std::vector<LayoutRow> rows = rows_of("!");
  const std::vector<Mistake> mistakes = seeded_mistakes();
  EXPECT_GE(mistakes.size(), 100U);
  for (const Mistake& mistake : mistakes) expect_seen(mistake, rows);
}

// Or any difference would count as seen: the run with hooks that change nothing.
TEST(Mistakes, AreNotSeenWhereThereIsNone) {
  for (LayoutRow& row : rows_of("!")) EXPECT_EQ(row.difference({.change_groups = [](Groups&) {}}), "") << row.text();
}

// What a person reads names the rank, the tensor, the place and both values, and lists what else differs.
TEST(DoctorParallel, SaysWhereTheLayoutDiffers) {
  const CheckHooks same_samples{.data_rank = [](const Groups&) { return 0; }};
  const std::string text = LayoutRow("llama drop dp2").fresh_check()->run_as_threads(&same_samples).failure;
  EXPECT_TRUE(text.starts_with("float64: rank 0, loss of step 1: ")) << text;
  EXPECT_NE(text.find(" instead of "), std::string::npos) << text;
  EXPECT_NE(text.find("differ by more than 1e-09"), std::string::npos) << text;
  EXPECT_NE(text.find("\n    gradient of model.embed_tokens.weight"), std::string::npos) << text;
  EXPECT_NE(text.find(" more"), std::string::npos) << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 12);
}

// Ranks that do not issue the same collectives are a finding, not the end of the program.
TEST(DoctorParallel, ReportsCollectivesThatDoNotMatch) {
  const CheckHooks one_less{.change_batches = [](std::vector<Batch>&, const Groups& groups) {
    if (groups.tp->is_last()) groups.world->barrier("a barrier that the others do not know").wait();
  }};
  const std::string failure = LayoutRow("llama tp2").fresh_check()->run_as_threads(&one_less).failure;
  EXPECT_NE(failure.find("a barrier that the others do not know"), std::string::npos) << failure;
}

// Each rank by itself over groups that it is given, as under a launcher: all agree on the verdict.
TEST(DoctorParallel, RanksOfALaunchAgreeOnTheVerdict) {
  const LayoutRow row("untied tp2 dp2 sp");
  for (const bool is_wrong : {false, true}) {
    std::vector<ParallelReport> reports(4);
    ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
      const std::unique_ptr<ParallelCheck> check = row.fresh_check();
      // One rank starts from other weights.
      if (is_wrong && groups.rank == 3) check->toy().layout->config.train.seed += 1;
      reports[static_cast<size_t>(groups.rank)] = check->run_as_rank(groups, at::kCPU);
    });
    for (const ParallelReport& report : reports) {
      EXPECT_EQ(report.is_ok(), !is_wrong) << report.failure;
      if (is_wrong) continue;
      EXPECT_LT(report.worst, 1e-9);
      EXPECT_EQ(report.num_steps, 3);
    }
  }
}

}  // namespace
}  // namespace megalith

// Reads back the log of a run: the later line of an iteration counts, an unfinished line does not.
#include "metrics/run_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "metrics/jsonl.h"
#include "metrics/run_comparison.h"

namespace megalith {
namespace {

class RunHistoryFile : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "metrics.jsonl"; }

  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "run_history_test";
  Logger log_{{.write = [](std::string_view) {}}};
};

StepRecord history_step(int64_t iteration, double loss, double elapsed_ms) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 9;
  record.losses = {{"lm loss", loss}};
  record.elapsed_ms = elapsed_ms;
  record.tokens = 100;
  return record;
}

TEST_F(RunHistoryFile, TheLaterLineOfAnIterationCounts) {
  {
    JsonlSink first(path(), log_, "one");
    for (int64_t i = 1; i <= 5; ++i) first.on_step(history_step(i, static_cast<double>(i), i <= 2 ? 500 : 10));
    first.on_validation({.iteration = 5, .set = "validation", .when = {}, .losses = {{"lm loss", 3.0}}});
    first.on_validation({.iteration = 2, .set = "validation", .when = {}, .losses = {{"lm loss", std::nan("")}}});
    JsonlSink second(path(), log_, "two");  // resumed after 3
    for (int64_t i = 4; i <= 7; ++i) second.on_step(history_step(i, 10.0 + static_cast<double>(i), i <= 5 ? 500 : 20));
    second.on_validation({.iteration = 5, .set = "validation", .when = {}, .losses = {{"lm loss", 2.0}}});
    second.on_validation({.iteration = 7, .set = "validation", .when = {}, .losses = {{"lm loss", 2.5}}});
    second.on_validation({.iteration = 7, .set = "validation-z", .when = {}, .losses = {{"lm loss", 1.5}}});
    second.on_validation({.iteration = 7, .set = "validation-code", .when = {}, .losses = {{"lm loss", 1.5}}});
  }
  const RunHistory history = read_run_history(path());
  EXPECT_EQ(history.loss_name, "lm_loss");
  EXPECT_EQ(history.run_ids, (std::vector<std::string>{"one", "two"}));
  ASSERT_EQ(history.steps.size(), 7u);
  EXPECT_EQ(history.steps[2].loss, 3);
  EXPECT_EQ(history.steps[3].loss, 14);
  EXPECT_EQ(history.num_tokens(), 700);
  // The steps that count are 3, 6 and 7: 10, 20 and 20 ms. The first two of each start are left out.
  EXPECT_DOUBLE_EQ(history.mean_elapsed_ms(), 50.0 / 3);
  EXPECT_DOUBLE_EQ(history.mean_tokens_per_s_per_device(), 300 / 0.050);
  ASSERT_EQ(history.evaluations.size(), 5u);
  EXPECT_EQ(history.evaluated_sets(), (std::vector<std::string>{"validation", "validation-z", "validation-code"}));
  EXPECT_EQ(history.first_validation_set(), "validation");
  EXPECT_EQ(history.last_evaluation("validation")->loss, 2.5);
  EXPECT_EQ(history.best_evaluation("validation")->iteration, 5);
  EXPECT_FALSE(history.last_evaluation("test").has_value());
}

TEST_F(RunHistoryFile, LinesWithoutKindsAndUnfinishedOnesAreTaken) {
  write_file_atomic(path(),
                    std::string_view("{\"iteration\":1,\"lm_loss\":null,\"grad_norm\":null}\n{\"iteration\":2,\"lm_l"));
  const RunHistory history = read_run_history(path());
  ASSERT_EQ(history.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(history.steps[0].loss));
  EXPECT_FALSE(history.steps[0].grad_norm.has_value());
}

TEST_F(RunHistoryFile, WhatIsNoMetricsFileIsRefusedWithItsLine) {
  write_file_atomic(path(), std::string_view("{\"iteration\":1,\"lm_loss\":2}\n{\"iteration\":\"two\"}\n"));
  try {
    (void)read_run_history(path());
    FAIL() << "it was read";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("metrics.jsonl:2"), std::string::npos) << error.message();
  }
}

TEST(RunComparison, NamesTheOptionsThatDiffer) {
  std::vector<ComparedRun> runs(3);
  runs[0].options = {{"lr", "1"}, {"seed", "5"}, {"output_dir", "a"}};
  runs[1].options = {{"lr", "2"}, {"seed", "5"}, {"output_dir", "b"}};
  runs[2].options = {{"lr", "2"}, {"seed", "5"}, {"bf16", "true"}, {"output_dir", "c"}};
  const std::vector<DifferingOption> found = differing_options(runs);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "bf16");
  EXPECT_EQ(found[0].values, (std::vector<std::string>{"", "", "true"}));
  EXPECT_EQ(found[1].values, (std::vector<std::string>{"1", "2", "2"}));
}

TEST(RunComparison, NamesOfRunsCannotBecomePartsOfThePage) {
  std::vector<ComparedRun> runs(2);
  runs[0].name = "</script><script>alert(1)</script>";
  runs[1].name = "b";
  for (ComparedRun& run : runs) {
    run.history.steps = {{.iteration = 1, .train_iters = 1, .loss = std::numeric_limits<double>::quiet_NaN()},
                         {.iteration = 2, .train_iters = 2, .loss = 1}};
    run.history.is_warming_up = {true, true};
  }
  const std::string page = render_run_comparison(runs);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_NE(page.find("&lt;/script&gt;"), std::string::npos);
}

}  // namespace
}  // namespace megalith

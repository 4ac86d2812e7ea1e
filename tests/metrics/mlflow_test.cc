// MLflow's file store: its layout, runs that share it, and one that goes on.
#include "metrics/mlflow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

class MlflowRun : public testing::Test {
 protected:
  TrackedRun run() const {
    TrackedRun run;
    run.folder = folder_.path() / "my runs";
    run.group = "pre-training";
    run.name = "exp: \"one\"";
    run.options = {{"lr", "0.001", true, false}, {"sample_prompt", "two\nlines", false, false}};
    run.configuration = "lr: 0.001\n";
    run.command = {"megalith", "train"};
    return run;
  }
  static std::vector<std::string> mlflow_lines(const fs::path& file) {
    std::vector<std::string> lines;
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  // Value and iteration of each line; checks the time before them.
  static std::vector<std::string> mlflow_values(const fs::path& file) {
    std::vector<std::string> values;
    for (const std::string& line : mlflow_lines(file)) {
      EXPECT_GT(std::stoll(line), 1'700'000'000'000) << "milliseconds since 1970";
      values.push_back(line.substr(line.find(' ') + 1));
    }
    return values;
  }
  static bool has_line(const fs::path& file, const std::string& line) {
    const std::vector<std::string> lines = mlflow_lines(file);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }

  const test::TemporaryFolder folder_;
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
  LogOptions options_;
};

StepRecord mlflow_step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 3;
  record.consumed_samples = 8 * iteration;
  record.losses = {{"lm loss", 1.0 / static_cast<double>(iteration)}};
  record.elapsed_ms = 250;
  record.tokens = 1000;
  return record;
}

TEST_F(MlflowRun, LiesWhereMlflowLooks) {
  MlflowSink sink(run(), options_, log_);
  const fs::path folder = sink.folder(), experiment = folder.parent_path();
  EXPECT_EQ(experiment.parent_path(), folder_.path() / "my runs");
  EXPECT_EQ(experiment.filename().string().size(), 18u);
  EXPECT_TRUE(has_line(experiment / "meta.yaml", "name: \"pre-training\""));
  EXPECT_TRUE(has_line(experiment / "meta.yaml", "experiment_id: '" + experiment.filename().string() + "'"));
  EXPECT_TRUE(has_line(folder_.path() / "my runs" / "0" / "meta.yaml", "name: \"Default\""));
  EXPECT_EQ(sink.id().size(), 32u);
  EXPECT_EQ(folder.filename(), sink.id());
  EXPECT_TRUE(has_line(folder / "meta.yaml", R"(run_name: "exp: \"one\"")"));
  EXPECT_TRUE(has_line(folder / "meta.yaml", "status: 1")) << "it runs";
  EXPECT_TRUE(has_line(folder / "meta.yaml", "end_time: null"));
  EXPECT_TRUE(has_line(folder / "meta.yaml",
                       "artifact_uri: file://" +
                           (folder_.path() / "my%20runs" / experiment.filename() / sink.id() / "artifacts").string()));
  EXPECT_EQ(read_file(folder / "params" / "lr"), "0.001");
  EXPECT_EQ(read_file(folder / "params" / "sample_prompt"), "two lines") << "MLflow reads one line";
  EXPECT_EQ(read_file(folder / "tags" / "mlflow.runName"), "exp: \"one\"");
  EXPECT_EQ(read_file(folder / "artifacts" / "config.yaml"), "lr: 0.001\n");

  sink.on_step(mlflow_step(1));
  StepRecord bad = mlflow_step(2);
  bad.losses[0].second = std::nan("");
  sink.on_step(bad);
  sink.on_validation({.iteration = 2, .when = "", .losses = {{"lm loss", 0.25}}});
  sink.on_generation({.iteration = 2, .prompt = "call ", .continuation = "me"});
  using Lines = std::vector<std::string>;
  EXPECT_EQ(mlflow_values(folder / "metrics" / "lm loss"), Lines({"1 1", "nan 2"}));
  EXPECT_EQ(mlflow_values(folder / "metrics" / "lm loss validation"), Lines({"0.25 2"}));
  EXPECT_EQ(mlflow_values(folder / "metrics" / "consumed-samples"), Lines({"8 1", "16 2"}));
  EXPECT_EQ(mlflow_values(folder / "metrics" / "perf" / "iteration_time_ms"), Lines({"250 1", "250 2"}));
  EXPECT_EQ(mlflow_values(folder / "metrics" / "perf" / "tps_tokens_per_sec_per_gpu"), Lines({"4000 1", "4000 2"}));
  EXPECT_EQ(read_file(folder / "artifacts" / "samples" / "iteration_0000002.txt"), "call me\n");
  EXPECT_EQ(logged_, "");
}

TEST_F(MlflowRun, ItsStateIsHowItEnded) {
  const auto state_after = [&](int64_t steps, bool ends) {
    fs::path folder;
    {
      MlflowSink sink(run(), options_, log_);
      folder = sink.folder();
      for (int64_t i = 1; i <= steps; ++i) sink.on_step(mlflow_step(i));
      if (ends) sink.on_end();
    }
    EXPECT_FALSE(has_line(folder / "meta.yaml", "end_time: null"));
    for (const std::string& line : mlflow_lines(folder / "meta.yaml")) {
      if (line.starts_with("status: ")) return line.substr(8);
    }
    return std::string("none");
  };
  EXPECT_EQ(state_after(3, true), "3") << "finished";
  EXPECT_EQ(state_after(0, true), "3") << "an evaluation only";
  EXPECT_EQ(state_after(2, true), "5") << "stopped before its end";
  EXPECT_EQ(state_after(2, false), "4") << "failed";
}

TEST_F(MlflowRun, OneThatGoesOnIsTheSameWithoutTheStepsThatAreDoneAgain) {
  TrackedRun again = run();
  fs::path folder;
  {
    MlflowSink sink(run(), options_, log_);
    again.id = sink.id();
    folder = sink.folder();
    for (int64_t i = 1; i <= 3; ++i) sink.on_step(mlflow_step(i));
    sink.on_validation({.iteration = 3, .when = "", .losses = {{"lm loss", 0.25}}});
  }
  std::ofstream(folder / "metrics" / "lm loss", std::ios::app) << "1795434242667 0.2";  // cut short by a kill
  again.resumed_after = 2;
  again.name = "another name";
  again.options = {{"lr", "0.002", true, false}};
  MlflowSink sink(again, options_, log_);
  EXPECT_EQ(sink.folder(), folder);
  EXPECT_TRUE(has_line(folder / "meta.yaml", "status: 1") && has_line(folder / "meta.yaml", "end_time: null"));
  EXPECT_TRUE(has_line(folder / "meta.yaml", R"(run_name: "exp: \"one\"")"));
  EXPECT_EQ(read_file(folder / "params" / "lr"), "0.002");
  using Lines = std::vector<std::string>;
  EXPECT_EQ(mlflow_values(folder / "metrics" / "lm loss"), Lines({"1 1", "0.5 2"}));
  EXPECT_FALSE(fs::exists(folder / "metrics" / "lm loss validation")) << "MLflow cannot read an empty file";
  sink.on_step(mlflow_step(3));
  EXPECT_EQ(mlflow_values(folder / "metrics" / "lm loss"), Lines({"1 1", "0.5 2", "0.3333333333333333 3"}));
}

TEST_F(MlflowRun, OneThatIsGoneBeginsAnew) {
  TrackedRun lost = run();
  lost.id = std::string(32, 'a');
  const MlflowSink sink(lost, options_, log_);
  EXPECT_NE(sink.id(), lost.id);
  EXPECT_NE(logged_.find("has no run aaaa"), std::string::npos) << logged_;
}

TEST_F(MlflowRun, RunsOfOneExperimentLieTogether) {
  const MlflowSink one(run(), options_, log_), two(run(), options_, log_);
  EXPECT_EQ(one.folder().parent_path(), two.folder().parent_path());
  EXPECT_NE(one.id(), two.id());
  TrackedRun other = run();
  other.group = "fine-tuning";
  EXPECT_NE(MlflowSink(other, options_, log_).folder().parent_path(), one.folder().parent_path());
  TrackedRun of_none = run();
  of_none.group = "";
  EXPECT_EQ(MlflowSink(of_none, options_, log_).folder().parent_path().filename(), "0");
  // An experiment that MLflow made: another number, and YAML without quotes.
  const fs::path theirs = folder_.path() / "my runs" / "584814290942164133";
  fs::create_directories(theirs);
  std::ofstream(theirs / "meta.yaml") << "experiment_id: '584814290942164133'\nlifecycle_stage: active\nname: my exp\n";
  other.group = "my exp";
  EXPECT_EQ(MlflowSink(other, options_, log_).folder().parent_path(), theirs);
}

TEST_F(MlflowRun, NamesHaveOnlyWhatMlflowTakes) {
  EXPECT_EQ(mlflow_name("lm loss validation-1"), "lm loss validation-1");
  EXPECT_EQ(mlflow_name("a(b)+c=ä"), "a_b__c___");
}

TEST_F(MlflowRun, AStoreThatCannotBeWrittenIsAUserError) {
  TrackedRun blocked = run();
  blocked.folder = folder_.write("file", "mine") / "mlruns";
  EXPECT_THROW(MlflowSink(blocked, options_, log_), UserError);
}

}  // namespace
}  // namespace megalith

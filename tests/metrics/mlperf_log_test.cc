// MLCommons' lines: their order over steps and evaluations, and how a run ends.
#include "metrics/mlperf_log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

// "key" of each line, with the value of eval_accuracy and the status of run_stop.
std::string lines_of(const std::vector<double>& losses, std::optional<double> target) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "mlperf.log").string();
  Logger log;
  int64_t now = 1000;
  {
    MlperfLog sink(path, {.facts = {{"seed", "7"}}, .target = target, .log_interval = 2}, log, [&] { return now++; });
    StepRecord step;
    step.losses = {{"lm loss", 9.0}};
    for (const double loss : losses) {
      for (int i = 0; i < 2; ++i) {
        ++step.iteration;
        step.consumed_samples += 4;
        sink.on_step(step);
      }
      ValidationRecord validation;
      validation.consumed_samples = step.consumed_samples;
      validation.losses = {{"lm loss", loss}};
      sink.on_validation(validation);
      validation.set = "validation-code";  // judges nothing
      validation.losses[0].second = 0;
      sink.on_validation(validation);
    }
    sink.on_end();
  }
  std::istringstream lines(read_file(path));
  std::string keys;
  double before = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with(":::MLLOG ")) << line;
    const Json event = parse_json(line.substr(9), path);
    EXPECT_GE(json_get<double>(event, "time_ms", path), before) << line;
    before = json_get<double>(event, "time_ms", path);
    const std::string key = json_get<std::string>(event, "key", path);
    keys += key + " ";
    if (key == "eval_accuracy") keys.back() = '=', keys += dump_json(event["value"]) + " ";
    if (key == "run_stop") keys += json_get<std::string>(event["metadata"], "status", path);
  }
  return keys;
}

TEST(MlperfLog, BlocksOfTrainingAndEvaluationsTakeTurns) {
  const std::string start = "cache_clear init_start seed init_stop run_start ", block = "block_start tracked_stats block_stop ";
  EXPECT_EQ(lines_of({5.0, 3.0, 2.0}, 3.0),
            start + block + "eval_start eval_accuracy=5.0 eval_stop " + block +
                "eval_start eval_accuracy=3.0 eval_stop run_stop success");
  EXPECT_EQ(lines_of({5.0}, 3.0), start + block + "eval_start eval_accuracy=5.0 eval_stop run_stop aborted");
  EXPECT_EQ(lines_of({5.0}, std::nullopt), lines_of({5.0}, 3.0));
}

TEST(MlperfLog, TargetsAreThoseOfTheBenchmarks) {
  EXPECT_EQ(mlperf_target("llama31_8b"), 3.3);
  EXPECT_EQ(mlperf_target("flux1"), 0.586);
  EXPECT_EQ(mlperf_target("own"), std::nullopt);
}

}  // namespace
}  // namespace megalith

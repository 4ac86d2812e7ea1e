// metrics_file: valid JSON whatever happened, one line a step, resumed after a kill.
#include "metrics/jsonl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"

namespace megalith {
namespace {

class JsonlFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("jsonl_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<Json> lines() const {
    std::vector<Json> result;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) result.push_back(parse_json(line, "line"));
    return result;
  }
  std::filesystem::path path() const { return folder_ / "run" / "metrics.jsonl"; }

  std::filesystem::path folder_;
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
};

StepRecord jsonl_step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.losses = {{"lm loss", 0.1}, {"mtp_1 loss", 2.0}};
  record.grad_norm = 1.0 / 3;
  record.learning_rate = 3e-5;
  record.elapsed_ms = 200;
  record.tokens = 1000;
  record.flops = 1e12;
  record.model_flops = 1.5e12;
  return record;
}

TEST_F(JsonlFile, HasOneObjectAStepWithEveryDigit) {
  {
    JsonlSink sink(path(), log_);  // makes the folder
    sink.on_step(jsonl_step(1));
    sink.on_step(jsonl_step(2));
  }
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["iteration"], 2);
  EXPECT_EQ(all[1]["lm_loss"], 0.1);
  EXPECT_EQ(all[1]["mtp_1_loss"], 2.0);
  EXPECT_EQ(all[1]["grad_norm"], 1.0 / 3);
  EXPECT_EQ(all[1]["learning_rate"], 3e-5);
  EXPECT_EQ(all[1]["elapsed_ms"], 200);
  EXPECT_EQ(all[1]["tokens_per_s_per_device"], 5000);
  EXPECT_EQ(all[1]["tflops_per_device"], 5);
  EXPECT_EQ(all[1]["model_tflops_per_device"], 7.5);
  EXPECT_FALSE(all[1].contains("params_norm"));
}

TEST_F(JsonlFile, WhatIsNoNumberIsNull) {
  StepRecord record = jsonl_step(1);
  record.losses[0].second = std::numeric_limits<double>::quiet_NaN();
  record.losses[1].second = -std::numeric_limits<double>::infinity();
  record.grad_norm.reset();
  record.elapsed_ms = 0;  // no division by zero
  const Json line = parse_json(json_line(record), "line");
  EXPECT_TRUE(line["lm_loss"].is_null());
  EXPECT_TRUE(line["mtp_1_loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["tokens_per_s_per_device"], 0);
}

TEST_F(JsonlFile, AppendsAndDropsAnUnfinishedLine) {
  { JsonlSink(path(), log_).on_step(jsonl_step(1)); }
  const std::string whole = read_file(path());
  {
    std::ofstream file(path(), std::ios::app);
    file << whole.substr(0, whole.size() / 2);  // killed while writing
  }
  { JsonlSink(path(), log_).on_step(jsonl_step(2)); }
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["iteration"], 2);
  EXPECT_NE(logged_.find("dropped an unfinished last line"), std::string::npos) << logged_;
}

TEST_F(JsonlFile, AnUnfinishedLineMayBeLongOrTheOnlyOne) {
  std::filesystem::create_directories(path().parent_path());
  { std::ofstream(path()) << std::string(10000, 'x'); }
  { JsonlSink(path(), log_).on_step(jsonl_step(1)); }
  EXPECT_EQ(lines().size(), 1u);
  { std::ofstream(path(), std::ios::app) << std::string(9000, 'x'); }
  { JsonlSink(path(), log_).on_step(jsonl_step(2)); }
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(JsonlFile, APathThatCannotBeWrittenIsAUserError) {
  std::filesystem::create_directories(folder_);
  try {
    JsonlSink sink(folder_, log_);
    FAIL() << "a folder was accepted";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("metrics_file"), std::string::npos);
  }
}

TEST_F(JsonlFile, AFullDiskCostsOneWarning) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  JsonlSink sink("/dev/full", log_);
  sink.on_step(jsonl_step(1));
  const std::string first = logged_;
  EXPECT_NE(first.find("the line of iteration 1 was not written"), std::string::npos) << first;
  sink.on_step(jsonl_step(2));
  EXPECT_EQ(logged_, first);
}

}  // namespace
}  // namespace megalith

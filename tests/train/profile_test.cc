// Traces: valid JSON that names the operators of ATen and ours, the ranges and the collectives, of the iterations asked
// for.
#include "train/profile.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/json.h"
#include "nn/activation.h"

namespace megalith {
namespace {

class Tracing : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // An iteration with an operator of each kind, forward and backward, and two collectives that overlap.
  void work() {
    const ProfileRange range("forward");
    const at::Tensor x = at::randn({5, 16}).requires_grad_();
    activated(at::silu(x), {.kind = ops::ActivationKind::kSilu}, Kernels::kFused).value.sum().backward();
    at::Tensor sum = at::ones({3}), other = at::ones({2});
    Work first = groups_.dp->all_reduce(sum, ReduceOp::kSum, "layers.0.weight");
    Work second = groups_.dp->all_reduce(other, ReduceOp::kSum, "layers.1.weight");
    first.wait();
    second.wait();
  }

  void run(Profiler& profiler, int64_t first, int64_t last) {
    for (int64_t iteration = first; iteration <= last; ++iteration) {
      profiler.begin_iteration(iteration);
      work();
      profiler.end_iteration(iteration);
    }
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "profile_test";
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
  Groups groups_ = Groups::single();
};

std::multiset<std::string> names_of(const Json& trace) {
  std::multiset<std::string> names;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.contains("name")) names.insert(event.at("name").get<std::string>());
  }
  return names;
}

TEST_F(Tracing, NamesOperatorsRangesAndCollectivesOfTheIterationsAskedFor) {
  {
    Profiler profiler({.profile = true, .profile_step_start = 1, .profile_step_end = 3}, folder_ / "made", groups_,
                      at::kCPU, log_);
    run(profiler, 1, 1);
    EXPECT_FALSE(profiler.is_recording());
    profiler.begin_iteration(2);
    EXPECT_TRUE(profiler.is_recording());
    work();
    profiler.end_iteration(2);
    run(profiler, 3, 5);
    EXPECT_FALSE(profiler.is_recording());
    EXPECT_EQ(profiler.written(), folder_ / "made" / "rank0.iterations_2_to_3.pt.trace.json");
  }
  const Json trace = load_json(folder_ / "made" / "rank0.iterations_2_to_3.pt.trace.json");
  const std::multiset<std::string> names = names_of(trace);
  for (const char* name : {"aten::silu", "aten::silu_backward", "megalith::swiglu", "megalith::swiglu_backward",
                           "forward", "all_reduce dp layers.0.weight 12 B"}) {
    EXPECT_GE(names.count(name), 2u) << name;
  }
  EXPECT_EQ(names.count("ProfilerStep#1"), 0u);
  EXPECT_EQ(names.count("ProfilerStep#2"), 1u);
  EXPECT_EQ(names.count("ProfilerStep#3"), 1u);
  EXPECT_EQ(names.count("ProfilerStep#4"), 0u);
  EXPECT_EQ(trace.at("distributedInfo").at("world_size"), 1);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "made")) files += entry.exists();
  EXPECT_EQ(files, 1u) << "no temporary file stays";
}

// The profiler's clock and ours are read some microseconds apart; an iteration takes longer than 20 of them.
TEST_F(Tracing, CollectivesLieWithinTheirIteration) {
  Profiler profiler({.profile = true, .profile_step_start = 0, .profile_step_end = 1}, folder_, groups_, at::kCPU,
                    log_);
  run(profiler, 1, 1);
  const Json trace = load_json(profiler.written());
  double begin_us = 0, end_us = 0;
  std::map<int64_t, std::pair<double, double>> collectives;  // by id
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == "ProfilerStep#1" && event.at("ph") == "X") {
      begin_us = event.at("ts").get<double>();
      end_us = begin_us + event.at("dur").get<double>();
    }
    if (event.value("cat", "") != "collective") continue;
    auto& [start, end] = collectives[event.at("id").get<int64_t>()];
    (event.at("ph") == "b" ? start : end) = event.at("ts").get<double>();
  }
  ASSERT_EQ(collectives.size(), 2u);
  EXPECT_GT(end_us, begin_us);
  for (const auto& [id, times] : collectives) {
    EXPECT_GE(times.first, begin_us - 20) << id;
    EXPECT_LE(times.first, times.second) << id;
    EXPECT_LE(times.second, end_us + 20) << id;
  }
  EXPECT_LT(collectives.at(2).first, collectives.at(1).second) << "the second was issued while the first was under way";
}

TEST_F(Tracing, ARunThatStopsEarlyLeavesWhatItHas) {
  {
    run(*std::make_unique<Profiler>(ProfileOptions{.profile = true, .profile_step_start = 0, .profile_step_end = 9},
                                    folder_, groups_, at::kCPU, log_),
        1, 2);
  }
  EXPECT_GE(names_of(load_json(folder_ / "rank0.iterations_1_to_2.pt.trace.json")).count("aten::silu"), 2u);
}

TEST_F(Tracing, OtherRanksAndRunsWithoutItTouchNothing) {
  Profiler off({}, folder_, groups_, at::kCPU, log_),
      other({.profile = true, .profile_ranks = {3}}, folder_, groups_, at::kCPU, log_);
  run(off, 1, 14);
  run(other, 1, 14);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(Tracing, AResumedRunPastTheRangeSaysSo) {
  Profiler profiler({.profile = true}, folder_, groups_, at::kCPU, log_);
  run(profiler, 13, 14);
  EXPECT_TRUE(profiler.written().empty());
  EXPECT_NE(logged_.find("iteration 13 is past profile_step_end 12"), std::string::npos) << logged_;
}

TEST_F(Tracing, AFolderThatCannotBeWrittenFailsBeforeTraining) {
  std::filesystem::create_directories(folder_);
  write_file_atomic(folder_ / "a file", "x");
  EXPECT_THROW(Profiler({.profile = true}, folder_ / "a file", groups_, at::kCPU, log_), UserError);
  if (::geteuid() == 0) return;  // root may write into any folder
  ::chmod(folder_.c_str(), 0555);
  EXPECT_THROW(Profiler({.profile = true}, folder_, groups_, at::kCPU, log_), UserError);
  ::chmod(folder_.c_str(), 0755);
}

TEST(ProfileOptions, AnEmptyRangeIsRefusedAndTheFolderFollows) {
  ProfileOptions options{.profile = true, .profile_step_start = 4, .profile_step_end = 4};
  ASSERT_EQ(check_profile_options(options).size(), 1u);
  EXPECT_EQ(check_profile_options(options)[0].message(),
            "profile_step_end 4 is not above profile_step_start 4: no iteration is traced");
  options.profile = false;
  EXPECT_TRUE(check_profile_options(options).empty());
  EXPECT_EQ(options.folder(std::nullopt), "profile");
  EXPECT_EQ(options.folder("events"), "events");
  options.profile_dir = "traces";
  EXPECT_EQ(options.folder("events"), "traces");
}

}  // namespace
}  // namespace megalith

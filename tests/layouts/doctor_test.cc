// What `megalith doctor --parallel` runs finds every mistake that the matrix finds, on configurations of users.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "comm/thread_world.h"
#include "layouts/doctor_cases.h"
#include "layouts/mistakes.h"

namespace megalith {
namespace {

using namespace test;

TEST(DoctorParallel, PassesACleanBuild) {
  for (DoctorCase& user : doctor_cases()) {
    const ParallelReport report = user.check->run_as_threads();
    EXPECT_EQ(report.failure, "") << user.name << ": " << user.check->toy().text();
    EXPECT_LT(report.worst, 1e-9) << user.name;
    EXPECT_GT(report.num_gradients, 10) << user.name;
    EXPECT_GE(report.num_parameters, report.num_gradients) << user.name;
    EXPECT_EQ(report.num_steps, 3);
    std::printf("  %-60s %.1g\n", user.name.c_str(), report.worst);
  }
}

TEST(DoctorParallel, FindsEverySeededMistake) {
  std::vector<DoctorCase> users = doctor_cases();
  for (const Mistake& mistake : seeded_mistakes()) {
    // The doctor's toy sets fp8_format aside: scales of experts follow the layout, which is no fault.
    if (mistake.name.starts_with("eight bits")) continue;
    std::string found;
    for (size_t i = 0; i < users.size() && found.empty(); ++i) {
      DoctorCase& user = users[i];
      if (mistake.is_of_experts.value_or(user.has_experts) != user.has_experts) continue;
      if (mistake.rule != user.rule) continue;
      std::unique_ptr<ParallelCheck> changed;
      if (mistake.change_pipeline) {
        changed = user.fresh_check();
        PipelinePlan& plan = changed->toy().layout->derived.pipeline;
        plan = mistake.change_pipeline(plan, Groups::single());
      }
      const ParallelReport report = (changed ? *changed : *user.check).run_as_threads(&mistake.hooks);
      if (report.is_ok()) continue;
      found = user.name + ": " + report.failure;
      // The next mistake is often of the same part: this one is tried first.
      std::rotate(users.begin(), users.begin() + static_cast<std::ptrdiff_t>(i),
                  users.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    EXPECT_NE(found, "") << "no configuration shows: " << mistake.name;
    std::printf("  %s\n    %s\n", mistake.name.c_str(), found.substr(0, found.find('\n')).c_str());
  }
}

// What a person reads names the rank, the tensor, the place and both values, and lists what else differs.
TEST(DoctorParallel, SaysWhereTheLayoutDiffers) {
  const CheckHooks same_samples{.data_rank = [](const Groups&) { return 0; }};
  for (DoctorCase& user : doctor_cases()) {
    if (user.name != "dp 2, tied, dropout") continue;
    const std::string text = user.check->run_as_threads(&same_samples).failure;
    EXPECT_TRUE(text.starts_with("float64: rank 0, loss of step 1: ")) << text;
    EXPECT_NE(text.find(" instead of "), std::string::npos) << text;
    EXPECT_NE(text.find("differ by more than 1e-09"), std::string::npos) << text;
    EXPECT_NE(text.find("\n    gradient of model.embed_tokens.weight"), std::string::npos) << text;
    EXPECT_NE(text.find(" more"), std::string::npos) << text;
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 12);
  }
}

// Ranks that do not issue the same collectives are a finding, not the end of the program.
TEST(DoctorParallel, ReportsCollectivesThatDoNotMatch) {
  const CheckHooks one_less{.change_batches = [](std::vector<Batch>&, const Groups& groups) {
    if (groups.tp->is_last()) groups.world->barrier("a barrier that the others do not know").wait();
  }};
  for (DoctorCase& user : doctor_cases()) {
    if (user.name != "tp 2, qkv bias, documents") continue;
    const ParallelReport report = user.check->run_as_threads(&one_less);
    EXPECT_NE(report.failure.find("a barrier that the others do not know"), std::string::npos) << report.failure;
  }
}

// Each rank by itself over groups that it is given, as under a launcher: all agree on the verdict.
TEST(DoctorParallel, RanksOfALaunchAgreeOnTheVerdict) {
  for (DoctorCase& user : doctor_cases()) {
    if (user.name != "tp 2 dp 2, sequence parallel") continue;
    for (const bool is_wrong : {false, true}) {
      std::vector<ParallelReport> reports(4);
      ThreadWorld(4).run(Mesh::from_options(user.world.parallel, 4), [&](Groups& groups) {
        const std::unique_ptr<ParallelCheck> check = user.fresh_check();
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
}

}  // namespace
}  // namespace megalith

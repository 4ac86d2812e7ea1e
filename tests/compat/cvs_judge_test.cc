// A run passes or fails for the reason that it has: each measure, the loss's curve, ranks and phrases, one by one.
#include "compat/cvs_judge.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "compat/cvs_report.h"
#include "core/error.h"

namespace megalith {
namespace {

// Llama 3.1 8B on one node: at least 6500 tokens/s and 380 TFLOP/s, at most 25 s and 90 % of memory.
CvsCase judged_case() {
  CvsCase of;
  of.mode = "single_node";
  of.model = "llama3_1_8b";
  of.gpu = "mi300x";
  of.training_iterations = 10;
  of.batch_size = 128;
  of.micro_batch_size = 2;
  of.sequence_length = 8192;
  of.bounds = {
      {"throughput_per_gpu", 380}, {"tokens_per_gpu", 6500}, {"elapsed_time_per_iteration", 25000}, {"mem_usage", 0.9}};
  return of;
}

std::string iteration_line(int64_t iteration, double loss, double elapsed_ms, const std::string& head = "") {
  return fmt::format(
      "{} iteration {:8d}/      10 | consumed samples: 128 | elapsed time per iteration (ms): {:.1f}/9.9 | mem usages: "
      "0.8000 |"
      " throughput per GPU (TFLOP/s/GPU): 400.0/1.0 | tokens per GPU (tokens/s/GPU): 6900.0/1.0 | learning rate: "
      "1.0E-04 |"
      " global batch size:   128 | lm loss: {:.6E} | loss scale: 1.0 | grad norm: 1.250 |"
      " number of skipped iterations:   0 | number of nan iterations:   0 |\n",
      head, iteration, elapsed_ms, loss);
}

std::string good_log(int64_t until = 10) {
  std::string text = "using world size: 8, data-parallel size: 8\n  num_layers ...................... 32\n";
  for (int64_t i = 1; i <= until; ++i)
    text += iteration_line(i, 12 - 0.1 * static_cast<double>(i), i <= 2 ? 90000 : 19000);
  return text;
}

CvsRun run_of(const std::string& log) {
  return {.name = "a.log", .logs = {parse_cvs_log(log, "a.log")}, .record = {}, .kernel_log = {}, .launch = {}};
}

// "topic check" of what is an error.
std::vector<std::string> errors_in(const CvsFindings& findings) {
  std::vector<std::string> errors;
  for (const CvsFinding& one : findings) {
    if (one.level == FindingLevel::kError) errors.push_back(one.topic + " " + one.check);
  }
  return errors;
}

using Names = std::vector<std::string>;

TEST(CvsLogs, LinesOfMegatronPrimusAndOursAreReadAlike) {
  const std::string megatron =
      " [2025-06-01 10:00:00] iteration        3/      10 | consumed samples: 384 | elapsed time per iteration (ms): "
      "19000.5 | mem usages: 0.8000 |"
      " throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 1.0E-04 | global batch size:   128 | lm loss: "
      "1.170000E+01 | grad norm: 1.250 |";
  const std::string newer_primus =
      "[20250601][rank-7/8][INFO ] iteration 3/10 | elapsed time per iteration (ms): 19000.5/19001.0 | compute per GPU "
      "(TFLOP/s/GPU): 400.0 (avg 399.0)"
      "  | tokens/s/GPU inst/harmonic mean: 6900.0/6890.0 | hip mem usage/free/total/usage_ratio: "
      "153.60GB/38.40GB/192.00GB/80.00% | lm loss: 1.17E+01 |"
      " global batch size: 128 | grad norm: 1.25 |";
  for (const std::string& line : {megatron, newer_primus, iteration_line(3, 11.7, 19000.5)}) {
    const CvsLog log = parse_cvs_log(line + "\n", "x");
    ASSERT_EQ(log.steps.size(), 1u) << line;
    const CvsStep& step = log.steps[0];
    EXPECT_EQ(log.train_iters, 10);
    EXPECT_EQ(step.iteration, 3);
    EXPECT_DOUBLE_EQ(step.elapsed_ms.value_or(0), 19000.5) << line;
    EXPECT_DOUBLE_EQ(step.tflops.value_or(0), 400);
    EXPECT_DOUBLE_EQ(step.loss.value_or(0), 11.7);
    EXPECT_DOUBLE_EQ(step.grad_norm.value_or(0), 1.25);
    EXPECT_DOUBLE_EQ(step.memory_fraction.value_or(0), 0.8) << line;
    EXPECT_EQ(step.batch_size.value_or(0), 128);
  }
}

TEST(CvsLogs, WhatARestartDidAgainCountsAsItWasDoneLast) {
  const CvsLog log = parse_cvs_log(good_log(6) + iteration_line(5, 3, 1) + iteration_line(6, 2, 1), "x");
  ASSERT_EQ(log.steps.size(), 6u);
  EXPECT_DOUBLE_EQ(*log.steps[5].loss, 2);
}

TEST(CvsLogs, ALogWithoutItsBeginningOrMiddleIsRefused) {
  const std::string whole = good_log();
  const size_t third = whole.find(" iteration        3/"), fifth = whole.find(" iteration        5/"),
               first = whole.find(" iteration        1/");
  EXPECT_NO_THROW(check_log_is_whole(parse_cvs_log(whole, "x")));
  EXPECT_THROW(check_log_is_whole(parse_cvs_log(whole.substr(third), "x")), UserError);
  EXPECT_THROW(check_log_is_whole(parse_cvs_log(whole.substr(first, third - first) + whole.substr(fifth), "x")),
               UserError);
  // Every tenth iteration, and the first one too, as newer versions of Megatron-LM log them.
  EXPECT_NO_THROW(check_log_is_whole(
      parse_cvs_log(iteration_line(1, 3, 1) + iteration_line(10, 3, 1) + iteration_line(20, 2, 1), "x")));
}

TEST(CvsJudge, AGoodRunPasses) {
  const CvsVerdict verdict = judge_cvs_run(judged_case(), run_of(good_log()), {});
  EXPECT_TRUE(verdict.is_passed()) << verdicts_text({&verdict, 1});
}

TEST(CvsJudge, MeansLeaveOutTheFirstTwoAndTheLastIteration) {
  std::string log = good_log(9) + iteration_line(10, 1, 90000);  // 90 s at both ends would be 34.9 s in the mean
  const CvsFindings findings = judge_performance(judged_case(), parse_cvs_log(log, "x").steps, {});
  EXPECT_EQ(errors_in(findings), Names{});
  EXPECT_NE(findings[2].found.find("19000.0 ms"), std::string::npos) << findings[2].found;
}

struct Exceeded {
  const char* key;
  double bound;
};

TEST(CvsJudge, EachMeasureFailsByItself) {
  const std::vector<CvsStep> steps = parse_cvs_log(good_log(), "x").steps;
  for (const auto& [key, bound] : {Exceeded{"throughput_per_gpu", 401}, Exceeded{"tokens_per_gpu", 6901},
                                   Exceeded{"elapsed_time_per_iteration", 18999}, Exceeded{"mem_usage", 0.79}}) {
    CvsCase of = judged_case();
    for (CvsBound& one : of.bounds) {
      if (one.key == key) one.value = bound;
    }
    EXPECT_EQ(errors_in(judge_performance(of, steps, {})), Names{std::string("performance ") + key});
  }
}

TEST(CvsJudge, AMeasureWithoutABoundIsShownAndNotJudged) {
  CvsCase of = judged_case();
  of.bounds = {{"tokens_per_gpu", 6500}};
  const CvsFindings findings = judge_performance(of, parse_cvs_log(good_log(), "x").steps, {});
  EXPECT_EQ(findings[0].level, FindingLevel::kNote);
  EXPECT_NE(findings[0].found.find("400.0 TFLOP/s"), std::string::npos);
  // 12 x 32 layers x 4096 x 8192 is 12.88 GFLOP a token, half of it 6.44: at 6900 tokens/s 44.5 TFLOP/s.
  EXPECT_NE(findings[0].found.find("355.5 with attention halved"), std::string::npos) << findings[0].found;
}

TEST(CvsJudge, TokensFollowFromTheTimeWhereALogHasNone) {
  std::vector<CvsStep> steps = parse_cvs_log(good_log(), "x").steps;
  for (CvsStep& step : steps) step.tokens_per_s.reset();
  const CvsFindings findings = judge_performance(judged_case(), steps, {.devices_per_node = 8});
  // 128 x 8192 tokens in 19 s on 8 devices.
  EXPECT_NE(findings[1].found.find("6898.5 tokens/s (computed"), std::string::npos) << findings[1].found;
}

TEST(CvsJudge, BoundsThatWereNotMadeForOneRunAreSaid) {
  CvsCase of = judged_case();
  of.bounds = {{"tokens_per_gpu", 6500}, {"elapsed_time_per_iteration", 12000}};
  const CvsFindings findings = judge_performance(of, parse_cvs_log(good_log(), "x").steps, {});
  EXPECT_EQ(findings.back().check, "thresholds");
  EXPECT_NE(findings.back().found.find("12000.0 is 10922.7 tokens/s here, and tokens_per_gpu asks for 6500.0"),
            std::string::npos)
      << findings.back().found;
}

std::vector<CvsStep> steps_with(const std::function<void(CvsStep&)>& change) {
  std::vector<CvsStep> steps = parse_cvs_log(good_log(), "x").steps;
  for (CvsStep& step : steps) change(step);
  return steps;
}

TEST(CvsJudge, ARisingLossFails) {
  const auto steps = steps_with([](CvsStep& step) { step.loss = 10 + 0.01 * static_cast<double>(step.iteration); });
  EXPECT_EQ(errors_in(judge_convergence(steps)), (Names{"convergence lm loss falls", "convergence last lm loss"}));
}

TEST(CvsJudge, ALossThatOnlyFallsInTheWarmUpFails) {
  const auto steps = steps_with([](CvsStep& step) { step.loss = step.iteration <= 2 ? 100 : 10; });
  EXPECT_EQ(errors_in(judge_convergence(steps)), (Names{"convergence lm loss falls", "convergence last lm loss"}));
}

TEST(CvsJudge, WhatIsNotFiniteFails) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(errors_in(judge_convergence(steps_with([&](CvsStep& s) {
              if (s.iteration == 7) s.loss = nan;
            }))),
            Names{"convergence finite"});
  EXPECT_EQ(errors_in(judge_convergence(steps_with([&](CvsStep& s) {
              if (s.iteration == 7) s.grad_norm = infinite;
            }))),
            Names{"convergence finite"});
  EXPECT_EQ(errors_in(judge_convergence(steps_with([&](CvsStep& s) {
              if (s.iteration == 7) s.num_nan = 1;
            }))),
            Names{"convergence finite"});
  EXPECT_TRUE(std::isnan(*parse_cvs_log(iteration_line(1, nan, 1), "x").steps.at(0).loss));
}

TEST(CvsJudge, SkippedIterationsFailOnlyInARow) {
  EXPECT_EQ(errors_in(judge_convergence(steps_with([](CvsStep& s) {
              if (s.iteration == 3 || s.iteration == 5) s.num_skipped = 1;
            }))),
            Names{});
  EXPECT_EQ(errors_in(judge_convergence(steps_with([](CvsStep& s) {
              if (s.iteration == 4 || s.iteration == 5) s.num_skipped = 1;
            }))),
            Names{"convergence skipped iterations"});
}

TEST(CvsJudge, SevenIterationsAreTooShort) {
  std::vector<CvsStep> steps = parse_cvs_log(good_log(7), "x").steps;
  EXPECT_EQ(errors_in(judge_convergence(steps)), Names{"convergence lm loss"});
  steps = parse_cvs_log(good_log(8), "x").steps;
  EXPECT_EQ(errors_in(judge_convergence(steps)), Names{});
}

RunStart record_of_eight() {
  RunStart start;
  start.status = "finished";
  start.exit_code = 0;
  start.last_iteration = 10;
  start.hosts = std::vector<std::string>(8, "node1");
  start.axes = {{"tp", 1}, {"cp", 1}, {"dp", 8}, {"pp", 1}};
  start.back_end = "rccl";
  return start;
}

TEST(CvsJudge, RanksNodesAndAxesAreThoseOfTheCase) {
  CvsRun run = run_of(good_log());
  run.record = record_of_eight();
  EXPECT_EQ(errors_in(judge_communication(judged_case(), run, {})), Names{});
  run.record->hosts.back() = "node2";
  EXPECT_EQ(errors_in(judge_communication(judged_case(), run, {})), Names{"communication nodes"});
  run.record->hosts = std::vector<std::string>(4, "node1");
  EXPECT_EQ(errors_in(judge_communication(judged_case(), run, {})), Names{"communication ranks"});
  run.record = record_of_eight();
  run.record->axes = {{"tp", 2}, {"cp", 1}, {"dp", 4}, {"pp", 1}};
  EXPECT_EQ(errors_in(judge_communication(judged_case(), run, {})),
            (Names{"communication axis tp", "communication axis dp"}));
  run.record.reset();
  EXPECT_EQ(errors_in(judge_communication(judged_case(), run, {.devices_per_node = 4})), Names{"communication ranks"});
}

TEST(CvsJudge, ARunThatEndedEarlyFails) {
  CvsRun run = run_of(good_log(9) + "RuntimeError: HIP out of memory. Tried to allocate 2 GiB\n");
  EXPECT_EQ(errors_in(judge_results(judged_case(), run)), (Names{"results iterations", "results memory"}));
  run = run_of(good_log());
  run.record = record_of_eight();
  run.record->exit_code.reset();
  run.record->status = "running";
  EXPECT_EQ(errors_in(judge_results(judged_case(), run)), Names{"results exit code"});
}

TEST(CvsJudge, PhrasesOfFailuresFailInTheirOwnCaseOnly) {
  EXPECT_EQ(errors_in(judge_results(judged_case(), run_of(good_log() + "x NCCL error: unhandled\n"))),
            Names{"results log"});
  EXPECT_EQ(errors_in(judge_results(judged_case(), run_of(good_log() + "nccl error: unhandled\n"))), Names{});
}

TEST(CvsJudge, TheKernelsLogIsLookedThroughWhereItMayBeRead) {
  EXPECT_EQ(judge_kernel_log(std::nullopt).at(0).level, FindingLevel::kNote);
  EXPECT_EQ(judge_kernel_log("").at(0).level, FindingLevel::kOk);
  const CvsFindings findings = judge_kernel_log(
      "2026-01-01T00:00:01 amdgpu 0000:01:00.0: GPU reset begin!\n2026-01-01T00:00:02 audit: DENIED segfault\n"
      "2026-01-01T00:00:03 Runlist is getting oversubscribed\n");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].check, "kernel log, gpu_reset");
  EXPECT_EQ(findings[1].level, FindingLevel::kWarning);
}

TEST(CvsJudge, UpstreamWantsATimeThatIsAtLeastItsBound) {
  const std::string log =
      good_log() +
      "throughput per GPU: 400.0\nelapsed time per iteration: 19000.0\ntokens/GPU/s: 6900.000000\nmem usages: 0.8\n";
  CvsCase of = judged_case();
  of.bounds = {{"throughput_per_gpu", 380}, {"tokens_per_gpu", 6500}, {"elapsed_time_per_iteration", 12000}};
  EXPECT_EQ(errors_in(judge_as_upstream(of, parse_cvs_log(log, "x"))), Names{});
  of.bounds[2].value = 25000;  // faster than this fails there
  EXPECT_EQ(errors_in(judge_as_upstream(of, parse_cvs_log(log, "x"))), Names{"performance elapsed_time_per_iteration"});
}

TEST(CvsJudge, AnotherRunsLogIsRefused) {
  CvsCase of = judged_case();
  of.training_iterations = 30;
  of.batch_size = 64;
  try {
    judge_cvs_run(of, run_of(good_log()), {});
    FAIL() << "it was judged";
  } catch (const UserErrors& errors) {
    ASSERT_EQ(errors.errors().size(), 2u);
    EXPECT_NE(errors.errors()[0].message().find("has 10 iterations to do, and training_iterations is 30"),
              std::string::npos);
    EXPECT_NE(errors.errors()[1].message().find("global batch size is 128, and batch_size is 64"), std::string::npos);
  }
  CvsRun cut = run_of(good_log(6));
  cut.record = record_of_eight();
  EXPECT_THROW(judge_cvs_run(judged_case(), cut, {}), UserErrors);
}

TEST(CvsReport, FindingsCarryWhatWasExpectedAndMarkupIsEscaped) {
  CvsVerdict verdict{
      .run = "<a>.log",
      .of = judged_case(),
      .findings = {{"performance", "mem_usage", FindingLevel::kError, "0.95 & \"more\"", "at most 0.9", "less"}},
      .steps = {}};
  const OrderedJson json = verdicts_json({&verdict, 1});
  EXPECT_EQ(dump_json(json["runs"][0]["findings"][0]["expected"]), "\"at most 0.9\"");
  EXPECT_EQ(dump_json(json["is_passed"]), "false");
  EXPECT_NE(verdicts_text({&verdict, 1}).find("0.95 & \"more\", expected at most 0.9"), std::string::npos);
  for (const std::string& markup :
       {verdicts_junit({&verdict, 1}, "2026-01-01T00:00:00"), verdicts_page({&verdict, 1})}) {
    EXPECT_EQ(markup.find("<a>"), std::string::npos);
    EXPECT_NE(markup.find("0.95 &amp; &quot;more&quot;"), std::string::npos) << markup;
  }
}

}  // namespace
}  // namespace megalith

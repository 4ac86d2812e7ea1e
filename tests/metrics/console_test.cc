// Printed lines, byte for byte, and that the readers' patterns match them.
#include "metrics/console.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "core/log.h"
#include "metrics/printed.h"
#include "metrics/training_progress.h"

namespace megalith {
namespace {

// 100 ms a step, 1000 tokens, 2e12 FLOP on 2 devices: 5000 tokens/s and 10 TFLOP/s a device.
StepRecord step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 50;
  record.consumed_samples = 32 * iteration;
  record.global_batch_size = 32;
  record.losses = {{"lm loss", 9.5}};
  record.grad_norm = 1.25;
  record.learning_rate = 3e-4;
  record.elapsed_ms = 100;
  record.tokens = 1000;
  record.num_devices = 2;
  record.flops = 2e12;
  record.causal_flops = 1.8e12;
  record.memory_used_bytes = 1;
  record.memory_total_bytes = 4;
  return record;
}

struct Printed : test::Printed<ConsoleSink> {
  explicit Printed(const LogOptions& options = {}) : test::Printed<ConsoleSink>(options) {}
};

TEST(IterationLine, IsPrimusV01Exactly) {
  Printed printed;
  printed.sink.on_step(step(3));
  EXPECT_EQ(
      printed.text,
      " iteration        3/      50 | consumed samples:           96 | elapsed time per iteration (ms): 100.0/100.0 |"
      " mem usages: 0.2500 | throughput per GPU (TFLOP/s/GPU): 10.0/10.0 | tokens per GPU (tokens/s/GPU): "
      "5000.0/5000.0 |"
      " learning rate: 3.000000E-04 | global batch size:    32 | lm loss: 9.500000E+00 | loss scale: 1.0 |"
      " grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |\n");
}

TEST(IterationLine, HasEverySegmentThatApplies) {
  Printed printed({.log_throughput = false});
  StepRecord record = step(7);
  record.skipped_samples = 5;
  record.losses.push_back({"z_loss", 0.0});  // off: left out
  record.losses.push_back({"load_balancing_loss", 0.01});
  record.num_zeros = 12;
  record.params_norm = 345.6789;
  record.next_learning_rate = 2e-4;
  record.loss_scale = 65536;
  printed.sink.on_step(record);
  EXPECT_EQ(printed.text,
            " iteration        7/      50 | consumed samples:          224 | skipped samples:            5 |"
            " elapsed time per iteration (ms): 100.0/100.0 | learning rate: 2.000000E-04 | global batch size:    32 |"
            " lm loss: 9.500000E+00 | load_balancing_loss: 1.000000E-02 | loss scale: 65536.0 | grad norm: 1.250 |"
            " num zeros: 12.0 | params norm: 345.679 | number of skipped iterations:   0 | number of nan iterations:   "
            "0 |\n");
}

TEST(IterationLine, IsFoundByTheReadersPatterns) {
  Printed printed;
  StepRecord record = step(50);
  printed.sink.on_step(record);
  const std::string line = printed.take();
  const auto captured = [](const std::string& text, const char* pattern) {
    std::smatch match;
    return std::regex_search(text, match, std::regex(pattern, std::regex::icase)) ? match[match.size() - 1].str() : "";
  };
  // CVS and MAD, as reference documents quote them.
  EXPECT_EQ(captured(line, R"(throughput per GPU(?:\s*\([^)]*\))?\s*:\s+([0-9\.]+))"), "10.0");
  EXPECT_EQ(captured(line, R"(elapsed time per iteration \(ms\):\s+([0-9\.]+))"), "100.0");
  EXPECT_EQ(captured(line, R"(mem usages:\s+([0-9\.]+))"), "0.2500");
  EXPECT_EQ(captured(line, R"(tokens/s/GPU\):\s*(\d+\.?\d*)/)"), "5000.0");
  EXPECT_EQ(captured(line, R"(TFLOP/s/GPU\):\s*(\d+\.?\d*)/)"), "10.0");
  EXPECT_EQ(captured(line, R"(iteration\s+(\d+)\s*/\s*\d+[^\n]*?\blm loss:\s*([0-9.eE+\-]+))"), "9.500000E+00");
  EXPECT_NE(captured(line, R"((iteration\s+50\s*/\s*50\b))"), "");

  printed.sink.on_end();
  EXPECT_EQ(captured(printed.text, R"(throughput per GPU:\s+([0-9\.]+))"), "10.0000");
  EXPECT_EQ(captured(printed.text, R"(elapsed time per iteration:\s+([0-9\.]+))"), "100.0000");
  EXPECT_EQ(captured(printed.text, R"(tokens\/GPU\/s:\s+([0-9\.]+))"), "5000.000000");
  EXPECT_EQ(captured(printed.text, R"(mem usages:\s+([0-9\.]+))"), "0.2500");
}

TEST(IterationLine, NanIsShownAndCounted) {
  Printed printed;
  StepRecord record = step(1);
  record.losses[0].second = std::numeric_limits<double>::quiet_NaN();
  record.is_nan = true;
  printed.sink.on_step(record);
  EXPECT_NE(printed.text.find("lm loss: NAN |"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("number of nan iterations:   1 |"), std::string::npos);
}

TEST(IterationLine, AnIntervalIsTheMeanOfItsSteps) {
  Printed printed({.log_interval = 4});
  for (int64_t i = 1; i <= 4; ++i) {
    StepRecord record = step(i);
    record.losses[0].second = static_cast<double>(i);
    record.elapsed_ms = 100.0 * static_cast<double>(i);
    record.is_skipped = i == 2;
    record.is_nan = i == 2;
    EXPECT_EQ(printed.text, "");
    printed.sink.on_step(record);
  }
  const std::string line = printed.take();
  EXPECT_NE(line.find("(ms): 250.0/250.0 |"), std::string::npos) << line;
  // 4 × 500 tokens a device in 1 s: over the time, not the mean of four rates.
  EXPECT_NE(line.find("(tokens/s/GPU): 2000.0/2000.0 |"), std::string::npos) << line;
  EXPECT_NE(line.find("lm loss: 2.666667E+00 |"), std::string::npos) << "(1 + 3 + 4) / 3 in " << line;
  EXPECT_NE(line.find("skipped iterations:   1 | number of nan iterations:   1 |"), std::string::npos) << line;

  for (int64_t i = 5; i <= 8; ++i) {
    StepRecord record = step(i);
    record.is_skipped = true;
    printed.sink.on_step(record);
  }
  EXPECT_EQ(printed.take().find("lm loss"), std::string::npos) << "all skipped: there is no loss";
  printed.sink.on_step(step(50));
  EXPECT_NE(printed.take().find(" iteration       50/      50 |"), std::string::npos) << "the last one always";
}

TEST(LineAverages, RestartAfterTheWarmUpAndWhenFull) {
  LineAverages averages(2, 3);
  const auto mean = [&](int64_t iteration, double ms) { return averages.add(iteration, {ms, ms, ms}).elapsed_ms; };
  EXPECT_EQ(mean(1, 1000), 1000);
  EXPECT_EQ(mean(2, 500), 750);
  EXPECT_EQ(mean(3, 10), 10);  // the first two are left out from here on
  EXPECT_EQ(mean(4, 20), 15);
  EXPECT_EQ(mean(5, 30), 20);
  EXPECT_EQ(mean(6, 40), 40);  // held three: starts anew
  EXPECT_EQ(mean(7, 60), 50);
}

TEST(RunAverages, LeaveOutTheFirstTwoAndTheLast) {
  const auto elapsed_after = [](std::vector<double> times_ms) {
    RunAverages averages;
    for (size_t i = 0; i < times_ms.size(); ++i) {
      StepRecord record = step(static_cast<int64_t>(i + 1));
      record.elapsed_ms = times_ms[i];
      averages.add(record);
    }
    return averages.summary();
  };
  EXPECT_EQ(elapsed_after({}).num_steps, 0);
  EXPECT_DOUBLE_EQ(elapsed_after({900}).elapsed_ms, 900);
  EXPECT_DOUBLE_EQ(elapsed_after({900, 100}).elapsed_ms, 100);
  EXPECT_DOUBLE_EQ(elapsed_after({900, 100, 200}).elapsed_ms, 150);
  EXPECT_DOUBLE_EQ(elapsed_after({900, 800, 100, 700}).elapsed_ms, 100);
  const RunSummary summary = elapsed_after({900, 800, 100, 300, 700});
  EXPECT_EQ(summary.num_steps, 2);
  EXPECT_DOUBLE_EQ(summary.elapsed_ms, 200);
  // 500 tokens a device and step in 100 and 300 ms: harmonic mean of 5000/s and 1666.7/s.
  EXPECT_DOUBLE_EQ(summary.tokens_per_s_per_device, 2500);
  EXPECT_DOUBLE_EQ(summary.tflops_per_device, 5);
  EXPECT_DOUBLE_EQ(summary.causal_tflops_per_device, 4.5);
  EXPECT_DOUBLE_EQ(summary.memory_used_fraction, 0.25);
}

TEST(Summary, IsFourLinesAndNothingWithoutSteps) {
  Printed printed;
  printed.sink.on_end();
  EXPECT_EQ(printed.text, "");
  printed.sink.on_step(step(1));
  (void)printed.take();
  printed.sink.on_end();
  EXPECT_EQ(printed.text,
            "throughput per GPU: 10.0000\nelapsed time per iteration: 100.0000\ntokens/GPU/s: 5000.000000\nmem usages: "
            "0.2500\n");
}

TEST(ValidationLine, IsMegatronsBlock) {
  Printed printed;
  printed.sink.on_validation({.iteration = 100, .when = "iteration 100", .losses = {{"lm loss", 2.0}}});
  const std::string dashes(95, '-');  // one more than the line has letters
  EXPECT_EQ(printed.text,
            dashes +
                "\n validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | \n" +
                dashes + "\n");
}

TEST(ValidationLine, PerplexityIsCutAtE20) {
  Printed printed;
  printed.sink.on_validation({.set = "validation-1", .when = "iteration 5 on test set", .losses = {{"lm loss", 30.0}}});
  EXPECT_NE(
      printed.text.find(" validation-1 loss at iteration 5 on test set | lm loss value: 3.000000E+01 | lm loss PPL: "
                        "4.851652E+08 | "),
      std::string::npos)
      << printed.text;
}

TEST(SampleLines, AreIndentedSoThatNoneIsTakenForAnIterationLine) {
  Printed printed;
  printed.sink.on_generation({.iteration = 20, .prompt = "In the", .continuation = " end\n iteration 21/ 30 |"});
  EXPECT_EQ(printed.text, " sample at iteration 20:\n    In the end\n     iteration 21/ 30 |\n");
}

TEST(TrainingProgress, TellsHowFarAndHowLong) {
  std::string shown;
  Logger log({.write = [&](std::string_view text) { shown += text; }, .is_terminal = true});
  TrainingProgress progress(log);
  progress.on_step(step(10));
  EXPECT_EQ(progress.line(), "step 10 of 50 (20 %), loss 9.500, 5.00 k tok/s/device, ETA 4.00 s");
  EXPECT_NE(shown.find("step 10 of 50"), std::string::npos);
  progress.on_step(step(50));
  EXPECT_EQ(progress.line(), "step 50 of 50 (100 %), loss 9.500, 5.00 k tok/s/device");
}

}  // namespace
}  // namespace megalith

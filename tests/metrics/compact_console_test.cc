// The lines for people: byte for byte, never longer than 110 columns, in colour only where it is wanted.
#include "metrics/compact_console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>

#include "metrics/json_console.h"
#include "metrics/jsonl.h"

namespace megalith {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// 100 ms a step, 1000 tokens, 2e12 FLOP on 2 devices: 5000 tokens/s and 10 TFLOP/s a device.
StepRecord compact_step(int64_t iteration, int64_t train_iters = 340) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = train_iters;
  record.losses = {{"lm loss", 2.83124}};
  record.grad_norm = 0.8431;
  record.learning_rate = 1e-3;
  record.next_learning_rate = 2e-3;  // the line has the one that was used
  record.elapsed_ms = 100;
  record.tokens = 1000;
  record.num_devices = 2;
  record.flops = 2e12;
  record.memory_used_bytes = int64_t{41} << 30;
  return record;
}

struct CompactPrinted {
  explicit CompactPrinted(CompactSettings settings = {})
      : sink(with_clock(std::move(settings), this), [this](std::string_view line) { text += line; }) {}
  static CompactSettings with_clock(CompactSettings settings, CompactPrinted* self) {
    settings.clock = [self] { return self->now_s; };
    return settings;
  }
  // A step that ends a second after the one before.
  std::string line_of(const StepRecord& record) {
    text.clear();
    now_s += 1;
    sink.on_step(record);
    return text;
  }
  std::string text;
  double now_s = 0;
  CompactConsole sink;
};

TEST(CompactLine, HasWhatAPersonReadsOfAStep) {
  CompactPrinted printed;
  EXPECT_EQ(printed.line_of(compact_step(1)),
            "step   1/340  loss 2.8312  grad 0.843  lr 1.00e-03  5.00 k tok/s/dev  mem 41.0 GiB  left 34s\n");
  // From the second step on, the time left is that of the clock: a second a step.
  EXPECT_EQ(printed.line_of(compact_step(2)),
            "step   2/340  loss 2.8312  grad 0.843  lr 1.00e-03  5.00 k tok/s/dev  mem 41.0 GiB  left 5m38s\n");
  EXPECT_EQ(printed.line_of(compact_step(340)),
            "step 340/340  loss 2.8312  grad 0.843  lr 1.00e-03  5.00 k tok/s/dev  mem 41.0 GiB\n");
}

TEST(TimeLeft, CountsTheSamplesThatAGrowingBatchHasLeft) {
  double now_s = 0;
  TimeLeft time(/*train_samples=*/48, [&] { return now_s; });
  const auto left_after = [&](int64_t iteration, int64_t batch, int64_t consumed) {
    StepRecord record = compact_step(iteration, 6);
    record.global_batch_size = batch;
    record.consumed_samples = consumed;
    now_s += static_cast<double>(batch);  // a second a sample
    return time.after(record);
  };
  // Batches of 4, 4, 8, 8, 12 and 12. After the first step only its own time is known.
  EXPECT_DOUBLE_EQ(left_after(1, 4, 4).value(), 0.1 * 44 / 4);
  EXPECT_DOUBLE_EQ(left_after(2, 4, 8).value(), 40);
  EXPECT_DOUBLE_EQ(left_after(3, 8, 16).value(), 32);
  EXPECT_FALSE(left_after(6, 12, 48).has_value());
}

TEST(CompactLine, ShowsTheShareOfThePeakWhereItIsKnown) {
  CompactPrinted printed;
  StepRecord record = compact_step(9);
  record.num_devices = 1;
  record.peak_flops_per_device = 50e12;
  EXPECT_EQ(printed.line_of(record),
            "step   9/340  loss 2.8312  grad 0.843  lr 1.00e-03  10.0 k tok/s  MFU 40.0 %  mem 41.0 GiB  left 33s\n");
}

TEST(CompactLine, SaysWhatWentWrong) {
  CompactPrinted printed;
  StepRecord record = compact_step(5);
  record.losses[0].second = -kNotANumber;
  record.grad_norm.reset();
  record.is_nan = record.is_skipped = true;
  record.loss_scale = 65536;
  EXPECT_EQ(printed.line_of(record),
            "step   5/340  loss nan  grad     -  lr 1.00e-03  5.00 k tok/s/dev  mem 41.0 GiB  left 34s"
            "  skipped 1  nan 1\n")
      << "the loss scale has no room";
  CompactPrinted narrow({.shows_throughput = false});
  EXPECT_EQ(narrow.line_of(record),
            "step   5/340  loss nan  grad     -  lr 1.00e-03  left 34s  skipped 1  nan 1  scale 65536\n");
}

TEST(CompactLine, AnIntervalIsTheMeanOfItsSteps) {
  CompactPrinted printed({.log_interval = 4});
  for (int64_t i = 1; i <= 4; ++i) {
    StepRecord record = compact_step(i);
    record.losses[0].second = static_cast<double>(i);
    record.elapsed_ms = 100.0 * static_cast<double>(i);
    record.is_skipped = i == 2;
    EXPECT_EQ(printed.text, "");
    printed.line_of(record);
  }
  // (1 + 3 + 4) / 3; 4 × 500 tokens a device in 1 s.
  EXPECT_NE(printed.text.find("  loss 2.6667  "), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("  2.00 k tok/s/dev  "), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("  skipped 1"), std::string::npos) << printed.text;
}

size_t columns_of_line(const std::string& line) {
  return std::regex_replace(line, std::regex("\x1b\\[[0-9;]*m|\n"), "").size();
}

TEST(CompactLine, IsNeverLongerThan110Columns) {
  const double numbers[] = {0,      1e-9,  0.5,  9.99996,     99.9996,
                            999.96, 54321, 3e20, kNotANumber, -std::numeric_limits<double>::infinity()};
  for (const bool has_colour : {false, true}) {
    for (const int64_t train_iters : {int64_t{1}, int64_t{99999}, int64_t{9999999}, int64_t{1} << 53}) {
      for (const double number : numbers) {
        for (const int num_devices : {1, 4096}) {
          CompactPrinted printed({.has_colour = has_colour});
          StepRecord record = compact_step(std::max<int64_t>(train_iters / 2, 1), train_iters);
          record.losses = {{"lm loss", number}, {"load_balancing_loss", 0.0123}, {"mtp_1 loss", number}};
          record.grad_norm = number;
          record.params_norm = 345.678;
          record.num_zeros = 123456789;
          record.learning_rate = std::fabs(number);
          record.num_devices = num_devices;
          record.peak_flops_per_device = 989e12;
          record.loss_scale = 65536;
          const std::string line = printed.line_of(record);
          EXPECT_LE(columns_of_line(line), 110U) << line;
          EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
          std::vector<const char*> words = {"step", "loss", "grad", "lr"};
          // The longest numbers that there are leave no room for rates.
          if (train_iters < 10000000) words.insert(words.end(), {"tok/s", "MFU"});
          for (const char* word : words) EXPECT_NE(line.find(word), std::string::npos) << word << " in " << line;
        }
      }
    }
  }
}

TEST(CompactLine, AddsFurtherLossesWhereThereIsRoom) {
  CompactPrinted printed;
  StepRecord record = compact_step(1);
  record.num_devices = 1;
  record.losses.emplace_back("z_loss", 0.01234);
  record.losses.emplace_back("off", 0.0);
  const std::string line = printed.line_of(record);
  EXPECT_NE(line.find("  z_loss 0.0123\n"), std::string::npos) << line;
  EXPECT_EQ(line.find("off"), std::string::npos);
}

TEST(CompactLine, ColoursNothingButWordsAndNumbers) {
  CompactPrinted plain, coloured({.has_colour = true});
  const std::string line = coloured.line_of(compact_step(3));
  EXPECT_NE(line.find("\x1b[2mloss\x1b[0m \x1b[1m2.8312\x1b[0m"), std::string::npos) << line;
  EXPECT_EQ(std::regex_replace(line, std::regex("\x1b\\[[0-9;]*m"), ""), plain.line_of(compact_step(3)));
}

TEST(CompactLine, AnEvaluationIsALine) {
  CompactPrinted printed;
  printed.line_of(compact_step(20));
  printed.text.clear();
  printed.sink.on_validation(
      {.iteration = 20, .when = "iteration 20", .losses = {{"lm loss", 2.0}, {"accuracy", 0.5}}});
  EXPECT_EQ(printed.text, "eval  20/340  validation loss 2.0000  perplexity 7.389  accuracy 0.5000\n");
  printed.text.clear();
  printed.sink.on_validation({.iteration = 340, .set = "test", .when = "", .losses = {{"lm loss", kNotANumber}}});
  EXPECT_EQ(printed.text, "eval 340/340  test loss nan  perplexity nan\n");
}

TEST(CompactLine, ATextIsIndented) {
  CompactPrinted printed;
  printed.sink.on_generation({.iteration = 20, .prompt = "In the", .continuation = " end\nstep 21/30"});
  EXPECT_EQ(printed.text, "text written after step 20:\n    In the end\n    step 21/30\n");
}

TEST(ShortDuration, HasTheTwoLargestUnits) {
  EXPECT_EQ(short_duration(0.2), "0s");
  EXPECT_EQ(short_duration(59.4), "59s");
  EXPECT_EQ(short_duration(59.6), "1m00s");
  EXPECT_EQ(short_duration(3600 + 5 * 60), "1h05m");
  EXPECT_EQ(short_duration(50 * 3600), "2d02h");
  EXPECT_EQ(short_duration(std::numeric_limits<double>::infinity()), "unknown");
}

TEST(TakesColour, OnlyOnATerminalAndWithoutNoColor) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "this machine has no pseudo terminals";
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(takes_colour(terminal));
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(takes_colour(terminal)) << "empty is as if it were not set";
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(takes_colour(terminal));
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(takes_colour(terminal));
  ::setenv("TERM", "xterm", 1);
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_FALSE(takes_colour(file));
  ::close(file);
  ::close(terminal);
}

TEST(JsonConsole, WritesAnObjectALine) {
  std::string text;
  JsonConsole sink(/*log_interval=*/2, [&](std::string_view line) { text += line; });
  sink.on_step(compact_step(1));
  EXPECT_EQ(text, "") << "not due";
  sink.on_step(compact_step(2));
  EXPECT_NE(text.find("\"iteration\":2,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"lm_loss\":2.83124"), std::string::npos) << text;
  text.clear();
  const ValidationRecord evaluation{.iteration = 2, .when = "", .losses = {{"lm loss", 0.0}}};
  sink.on_validation(evaluation);
  // The words of metrics.jsonl, up to the time of day.
  const std::string in_file = json_line(evaluation);
  EXPECT_EQ(text.substr(0, text.find("\"time\"")), in_file.substr(0, in_file.find("\"time\"")));
  EXPECT_NE(text.find("\"evaluation_loss\":0.0,\"evaluation_losses\":{\"lm_loss\":0.0}"), std::string::npos) << text;
  text.clear();
  sink.on_generation({.iteration = 2, .prompt = "a", .continuation = "b\nc"});
  EXPECT_EQ(text, R"({"kind":"text","iteration":2,"prompt":"a","continuation":"b\nc"})"
                  "\n");
  text.clear();
  sink.on_end();
  EXPECT_TRUE(text.starts_with(R"({"kind":"summary","num_steps":1,"elapsed_ms":100.0,)")) << text;
}

}  // namespace
}  // namespace megalith

// Logger and Progress: who speaks, in what form, and that lines stay whole.
#include "core/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace megalith {
namespace {

struct Captured {
  std::string text;
  LoggerSettings settings(int rank = 0, int world_size = 1) {
    LoggerSettings settings;
    settings.rank = rank;
    settings.world_size = world_size;
    settings.write = [this](std::string_view line) { text += line; };
    return settings;
  }
};

TEST(Logger, SingleRankHasNoPrefix) {
  Captured out;
  Logger log(out.settings());
  log.info("{} layers", 4);
  log.warn("slow disk");
  log.error("lost {}", "node");
  log.debug("hidden");
  EXPECT_EQ(out.text, "4 layers\nwarning: slow disk\nerror: lost node\n");
}

TEST(Logger, OtherRanksWarnWithPrefixAndKeepInfoToRankZero) {
  Captured out;
  LoggerSettings settings = out.settings(5, 8);
  settings.coordinates = "dp1 tp1 pp0";
  Logger log(settings);
  log.info("start");
  log.note("fsdp is on");
  log.block("a\nb");
  log.warn("slow");
  EXPECT_EQ(out.text, "[rank 5 dp1 tp1 pp0] warning: slow\n");
}

TEST(Logger, NoteIsSaidOnceForEachText) {
  Captured out;
  Logger log(out.settings());
  for (int i = 0; i < 3; ++i) log.note("value {}", i / 2);
  EXPECT_EQ(out.text, "note: value 0\nnote: value 1\n");
}

TEST(Logger, SetRankAndLevelTakeEffect) {
  Captured out;
  Logger log(out.settings());
  log.set_rank(1, 2);
  log.warn("w");
  log.set_level(LogLevel::kError);
  log.warn("dropped");
  EXPECT_EQ(out.text, "[rank 1] warning: w\n");
}

TEST(Logger, LinesOfManyThreadsStayWhole) {
  Captured out;
  Logger log(out.settings());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 100; ++i) log.info("{}", std::string(50, 'x'));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < 400; ++i) expected += std::string(50, 'x') + "\n";
  EXPECT_EQ(out.text, expected);
}

TEST(Logger, StatusLineOfATerminalStaysBelowMessages) {
  Captured out;
  LoggerSettings settings = out.settings();
  settings.is_terminal = true;
  Logger log(settings);
  log.set_status("50 %");
  log.info("saved");
  log.set_status("");
  log.info("end");
  EXPECT_EQ(out.text, "\r\x1b[K50 %\r\x1b[Ksaved\n50 %\r\x1b[Kend\n");
}

TEST(Progress, LineSaysShareRateAndTimeLeft) {
  Captured out;
  Logger log(out.settings());
  Progress progress(log, "prepare", 400, "documents", {.enabled = false});
  progress.advance(100);
  const std::string line = progress.line();
  EXPECT_TRUE(line.starts_with("prepare: 100 of 400 documents (25 %), ")) << line;
  EXPECT_NE(line.find("documents/s, ETA "), std::string::npos) << line;
  EXPECT_EQ(out.text, "");
}

TEST(Progress, UnknownTotalHasNoPercentage) {
  Captured out;
  Logger log(out.settings());
  Progress progress(log, "read", 0, "lines", {.enabled = false});
  progress.set(7);
  const std::string line = progress.line();
  EXPECT_TRUE(line.starts_with("read: 7 lines")) << line;
  EXPECT_EQ(line.find("ETA"), std::string::npos) << line;
}

TEST(Progress, WritesLinesWhenThereIsNoTerminalAndALastOne) {
  Captured out;
  Logger log(out.settings());
  Progress progress(log, "p", 2, "steps", {.line_every_s = 0});
  progress.advance();
  progress.advance();
  progress.finish();
  EXPECT_EQ(std::count(out.text.begin(), out.text.end(), '\n'), 3) << out.text;
  EXPECT_NE(out.text.find("p: 2 of 2 steps (100 %)"), std::string::npos) << out.text;
}

TEST(Progress, ShortWorkIsSilent) {
  Captured out;
  Logger log(out.settings());
  {
    Progress progress(log, "p", 2, "steps");
    progress.advance(2);
    progress.finish();
  }
  EXPECT_EQ(out.text, "");
}

TEST(Progress, TerminalLineIsRemovedAtTheEnd) {
  Captured out;
  LoggerSettings settings = out.settings();
  settings.is_terminal = true;
  Logger log(settings);
  {
    Progress progress(log, "p", 2, "steps", {.redraw_every_s = 0});
    progress.advance();
  }
  EXPECT_TRUE(out.text.starts_with("\r\x1b[Kp: 1 of 2 steps (50 %)")) << out.text;
  EXPECT_TRUE(out.text.ends_with("\r\x1b[K")) << out.text;
}

}  // namespace
}  // namespace megalith

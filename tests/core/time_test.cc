// Timestamps and the stopwatch.
#include "core/time.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

namespace megalith {
namespace {

TEST(Time, LocalTimestampIsThatOfTheTimeZone) {
  setenv("TZ", "XYZ-1", /*replace=*/1);  // an hour ahead of universal time
  tzset();
  EXPECT_EQ(local_timestamp(std::chrono::system_clock::from_time_t(1769846488)), "2026-01-31 09:01:28");
  unsetenv("TZ");
  tzset();
}

TEST(Time, StopwatchNeverRunsBackwards) {
  Stopwatch watch;
  const double first_s = watch.elapsed_s();
  EXPECT_LE(first_s, watch.elapsed_s());
  EXPECT_GE(watch.elapsed_ms(), first_s * 1e3);
}

TEST(Time, ARestartedStopwatchCountsFromThere) {
  Stopwatch restarted;
  const Stopwatch older;
  restarted.restart();
  const double restarted_s = restarted.elapsed_s();  // read before the other, which began earlier
  EXPECT_LE(restarted_s, older.elapsed_s());
}

}  // namespace
}  // namespace megalith

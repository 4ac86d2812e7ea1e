// Timestamps and the stopwatch.
#include "core/time.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Time, IsoTimestampIsUniversalTime) {
  EXPECT_EQ(iso_timestamp(std::chrono::system_clock::from_time_t(0)), "1970-01-01T00:00:00Z");
  EXPECT_EQ(iso_timestamp(std::chrono::system_clock::from_time_t(1769846488)), "2026-01-31T08:01:28Z");
  EXPECT_EQ(local_timestamp().size(), 19u);
}

TEST(Time, StopwatchNeverRunsBackwards) {
  Stopwatch watch;
  const double first_s = watch.elapsed_s();
  EXPECT_LE(first_s, watch.elapsed_s());
  EXPECT_GE(watch.lap_s(), first_s);
  EXPECT_GE(watch.elapsed_ms(), 0);
}

}  // namespace
}  // namespace megalith

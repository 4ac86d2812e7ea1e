// The rule for the rows of logits that are held at a time.
#include "nn/loss_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace megalith {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(LossRows, TakeAnEighthOfWhatIsFree) {
  const int64_t row = 128'256 * 2;  // Llama 3's vocabulary in bf16
  EXPECT_EQ(loss_rows(row, 8 * 2048 * row), 2048);
  EXPECT_EQ(loss_rows(row, 8 * 2048 * row - 1), 1024) << "one byte less";
  EXPECT_EQ(loss_rows(row, 20 * kGiB), 8192);
  EXPECT_EQ(loss_rows(row / 8, 20 * kGiB), 65536) << "a part of the vocabulary has shorter rows";
}

TEST(LossRows, AreAThousandWhereLittleIsFree) {
  EXPECT_EQ(loss_rows(1 << 20, kGiB), 1024);
  EXPECT_EQ(loss_rows(1 << 20, 0), 1024);
  EXPECT_EQ(loss_rows(1 << 20, -5 * kGiB), 1024);
}

TEST(LossRows, EndAtAMillion) { EXPECT_EQ(loss_rows(1, std::numeric_limits<int64_t>::max()), 1 << 20); }

}  // namespace
}  // namespace megalith

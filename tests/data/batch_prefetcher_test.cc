// Reading ahead: the same batches in the same order, errors where they belong, nothing left over.
#include "data/batch_prefetcher.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "core/error.h"

namespace megalith {
namespace {

// Token p of sample i is 100·i + p; reading sample `bad` fails.
class CountingSamples : public SampleSource {
 public:
  CountingSamples(int64_t bad, std::atomic<int>& num_read, int wait_ms)
      : bad_(bad), num_read_(num_read), wait_ms_(wait_ms) {}
  int64_t num_samples() const override { return 1000; }
  std::string name() const override { return "counting"; }
  void read(int64_t index, std::span<int64_t> out) const override {
    if (wait_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms_));
    ++num_read_;
    if (index == bad_) throw UserError("sample " + std::to_string(index) + " is bad", "repair it");
    for (size_t p = 0; p < out.size(); ++p) out[p] = 100 * index + static_cast<int64_t>(p);
  }

 private:
  int64_t bad_;
  std::atomic<int>& num_read_;
  int wait_ms_;
};

class Prefetch : public testing::TestWithParam<int64_t> {
 protected:
  std::unique_ptr<BatchSource> source(RowOrder order, int64_t bad = -1, int wait_ms = 0) {
    return std::make_unique<BatchSource>(
        make_text_rows(std::make_unique<CountingSamples>(bad, num_read_, wait_ms), {.sequence_length = 4}),
        Order(order, 1000, "counting"));
  }
  static std::vector<DataPosition> step(int64_t consumed, int64_t num_microbatches = 3) {
    std::vector<DataPosition> positions;
    for (int64_t m = 0; m < num_microbatches; ++m) {
      positions.push_back({.consumed_samples = consumed + 2 * m, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 1});
    }
    return positions;
  }
  std::atomic<int> num_read_{0};
};
INSTANTIATE_TEST_SUITE_P(Workers, Prefetch, testing::Values(0, 1, 2, 7));

TEST_P(Prefetch, GivesWhatReadingGives) {
  for (const RowOrder type : {RowOrder::kOnce, RowOrder::kShuffled}) {
    const auto direct = source(type), ahead = source(type);
    BatchPrefetcher prefetcher(*ahead, GetParam());
    // Ordinary steps, across the end of an epoch for the cyclic one, and a step of another size.
    for (int64_t consumed = 960; consumed < (type == RowOrder::kShuffled ? 1040 : 990); consumed += 6) {
      const auto batches = prefetcher.take(step(consumed));
      prefetcher.prefetch(step(consumed + 6));
      ASSERT_EQ(batches.size(), 3u);
      for (size_t m = 0; m < 3; ++m) {
        const Batch expected = direct->read(step(consumed)[m]);
        EXPECT_TRUE(at::equal(batches[m].at(field::kTokens), expected.at(field::kTokens)));
        EXPECT_TRUE(at::equal(batches[m].at(field::kLabels), expected.at(field::kLabels)));
        EXPECT_TRUE(at::equal(batches[m].at(field::kSampleIndex), expected.at(field::kSampleIndex)));
      }
    }
    // Something else than what was begun.
    const auto other = prefetcher.take(step(12, 1));
    ASSERT_EQ(other.size(), 1u);
    EXPECT_TRUE(at::equal(other[0].at(field::kTokens), direct->read(step(12, 1)[0]).at(field::kTokens)));
  }
}

TEST_P(Prefetch, AnErrorComesWithTheStepThatNeedsTheBatch) {
  const auto bad = source(RowOrder::kOnce, /*bad=*/9);
  BatchPrefetcher prefetcher(*bad, GetParam());
  EXPECT_EQ(prefetcher.take(step(0)).size(), 3u);
  prefetcher.prefetch(step(6));
  try {
    prefetcher.take(step(6));
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "sample 9 is bad");
  }
  EXPECT_EQ(prefetcher.take(step(12)).size(), 3u);  // and it goes on
}

TEST_P(Prefetch, WhatNobodyTakesIsDropped) {
  const auto bad = source(RowOrder::kOnce, /*bad=*/9, /*wait_ms=*/50);
  {
    BatchPrefetcher prefetcher(*bad, GetParam());
    prefetcher.prefetch(step(0, 100));
  }
  // Only what was being read when it ended: at most one microbatch of two samples a thread, and those before. All of
  // them take seven threads a second and a half, the prefetcher is here for no time.
  EXPECT_LT(num_read_, 100);
}

TEST(PrefetchAhead, ReadsWhileNobodyWaits) {
  std::atomic<int> num_read{0};
  BatchSource source(make_text_rows(std::make_unique<CountingSamples>(-1, num_read, 0), {.sequence_length = 4}),
                     Order(RowOrder::kOnce, 1000, "counting"));
  BatchPrefetcher prefetcher(source, 2);
  prefetcher.prefetch({{.consumed_samples = 0, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 1},
                       {.consumed_samples = 2, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 1}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (num_read < 4 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(num_read, 4);
}

}  // namespace
}  // namespace megalith

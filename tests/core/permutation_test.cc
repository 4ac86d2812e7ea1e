// The order of passes over data: a permutation, another for each stream, without a favourite place.
#include "core/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace megalith {
namespace {

std::vector<int64_t> order(uint64_t stream, int64_t n) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(permuted(make_philox_key(3, "order"), stream, i, n));
  return values;
}

TEST(Permutation, EveryNumberIsThereOnce) {
  for (const int64_t n : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::vector<int64_t> values = order(1, n), expected(values.size());
    std::ranges::sort(values);
    std::iota(expected.begin(), expected.end(), int64_t{0});
    EXPECT_EQ(values, expected) << n;
  }
  // Sizes whose order would not fit in memory.
  constexpr int64_t kLarge = int64_t{1} << 40;
  EXPECT_NE(permuted(1, 0, kLarge - 1, kLarge), permuted(1, 0, kLarge - 2, kLarge));
}

TEST(Permutation, StreamsAreOtherOrders) {
  EXPECT_EQ(order(7, 100), order(7, 100));
  EXPECT_NE(order(7, 100), order(8, 100));
}

// All 24 orders of four things are about as frequent: of 24,000 draws each has 1000 with a deviation of 31; five of
// them are allowed.
TEST(Permutation, OrdersAreAboutAsFrequent) {
  std::vector<int> counts(256);
  for (uint64_t stream = 0; stream < 24'000; ++stream) {
    size_t code = 0;
    for (const int64_t value : order(stream, 4)) code = code * 4 + static_cast<size_t>(value);
    ++counts[code];
  }
  std::erase(counts, 0);
  ASSERT_EQ(counts.size(), 24u);
  EXPECT_GT(*std::ranges::min_element(counts), 1000 - 155);
  EXPECT_LT(*std::ranges::max_element(counts), 1000 + 155);
}

}  // namespace
}  // namespace megalith

// NumPy's generators against values that NumPy 2 gave.
#include "data/numpy_random.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "data/token_source.h"

namespace megalith {
namespace {

TEST(NumpyRandomState, FirstWordsOfSeed1234) {
  NumpyRandomState rng(1234);
  EXPECT_EQ(rng.next_u32(), 822569775u);
  EXPECT_EQ(rng.next_u32(), 2137449171u);
  EXPECT_EQ(rng.next_u32(), 2671936806u);
  EXPECT_EQ(rng.next_u32(), 3512589365u);
}

TEST(NumpyRandomState, TwoShufflesOnOneStream) {
  NumpyRandomState rng(1234);
  std::vector<int32_t> values(10);
  std::iota(values.begin(), values.end(), 0);
  rng.shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int32_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  std::iota(values.begin(), values.end(), 0);
  rng.shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<int32_t>{7, 3, 5, 1, 4, 8, 0, 2, 6, 9}));
}

TEST(NumpyRandomState, IntervalStaysInRangeAndNeedsNoDrawForZero) {
  NumpyRandomState a(1), b(1);
  EXPECT_EQ(a.interval(0), 0u);
  EXPECT_EQ(a.next_u32(), b.next_u32());
  for (int i = 0; i < 100; ++i) EXPECT_LE(a.interval(5), 5u);
  for (int i = 0; i < 100; ++i) EXPECT_LE(a.interval(uint64_t{1} << 40), uint64_t{1} << 40);
}

TEST(NumpyDefaultRng, FirstWordsOfSeed0) {
  NumpyDefaultRng rng(0);
  EXPECT_EQ(rng.next_u64(), 11749869230777074271u);
  EXPECT_EQ(rng.next_u64(), 4976686463289251617u);
}

TEST(MockData, LengthsAreMegatrons) {
  const auto mock = make_mock_source(32000, 2);
  ASSERT_EQ(mock->num_sequences(), 100'000);
  const int64_t first[] = {3484, 2609, 2094, 1105, 1261, 168, 309, 68};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(mock->sequence_length(i), first[i]) << i;
  int64_t thirds[3] = {}, low = INT64_MAX, high = 0;
  for (int64_t i = 0; i < 100'000; ++i) {
    const int64_t length = mock->sequence_length(i);
    thirds[i < 33333 ? 0 : i < 66667 ? 1 : 2] += length;
    low = std::min(low, length);
    high = std::max(high, length);
  }
  EXPECT_EQ(thirds[0], 68190290);
  EXPECT_EQ(thirds[1], 68159742);
  EXPECT_EQ(thirds[2], 68287065);
  EXPECT_EQ(low, 1);
  EXPECT_EQ(high, 4095);
}

TEST(MockData, DocumentsCountAndEndInEod) {
  const auto mock = make_mock_source(100, 99);
  std::vector<int64_t> tokens(68);
  mock->read(7, 0, 68, tokens.data());
  for (int64_t i = 0; i < 67; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i + 1);
  EXPECT_EQ(tokens[67], 99);
  mock->read(0, 98, 3, tokens.data());
  EXPECT_EQ(tokens[0], 99);
  EXPECT_EQ(tokens[1], 0);  // modulo the vocabulary
  EXPECT_EQ(tokens[2], 1);
}

// Vectors of numpy.random.RandomState(1234).
TEST(NumpyRandomState, DrawsWholeNumbersFractionsAndLengthsOfSpans) {
  NumpyRandomState random(1234), spans(1234);
  for (const int64_t expected : {4, 4, 3, 2, 1}) EXPECT_EQ(random.integer(1, 5), expected);
  EXPECT_EQ(random.random(), 0.6121118946772708);
  for (const int64_t expected : {1, 5, 3, 7, 7, 2, 2, 8}) EXPECT_EQ(spans.geometric(0.2), expected);
}

TEST(MockData, SentencesCountOnThroughTheirDocument) {
  const auto mock = make_mock_sentences({5, 6, 7, 8, 9});
  EXPECT_EQ(mock->num_documents(), 10'000);
  EXPECT_EQ(mock->document_begin(10'000), mock->num_sequences());
  int64_t last = -1;
  for (int64_t i = mock->document_begin(7); i < mock->document_begin(8); ++i) {
    std::vector<int64_t> tokens(static_cast<size_t>(mock->sequence_length(i)));
    mock->read(i, 0, std::ssize(tokens), tokens.data());
    for (const int64_t token : tokens) {
      const int64_t next = last == 9 ? 5 : last + 1;
      EXPECT_EQ(token, last < 0 ? token : next) << "sentence " << i;
      last = token;
    }
  }
}

// The blocks that shuffle() draws ahead against the rule: element i trades places with one of 0 … i.
TEST(NumpyRandomState, ShufflesOfEverySizeAreTheRulesAndLeaveTheStreamAlike) {
  for (const size_t size : {0, 1, 2, 3, 255, 256, 257, 623, 1000, 65536, 65537, 100003}) {
    NumpyRandomState fast(7), slow(7);
    std::vector<int> shuffled(size), expected(size);
    for (size_t i = 0; i < size; ++i) shuffled[i] = expected[i] = static_cast<int>(i);
    fast.shuffle(std::span(shuffled));
    for (size_t i = size; i-- > 1;) std::swap(expected[i], expected[slow.interval(i)]);
    EXPECT_TRUE(shuffled == expected) << size;
    EXPECT_EQ(fast.next_u32(), slow.next_u32()) << size;
  }
}

}  // namespace
}  // namespace megalith

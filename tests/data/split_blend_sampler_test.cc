// Splits, blends and samplers against Megatron's order.
#include "core/permutation.h"
#include "data/blend.h"
#include "data/order.h"
#include "data/row_mix.h"
#include "data/split.h"
#include "data_fixture.h"
#include "support/error_of.h"

namespace megalith {
namespace {

TEST(Split, BoundariesAreRoundedHalfToEven) {
  const auto ranges = [](std::string_view text, int64_t n) { return split_ranges(parse_split(text), n); };
  using R = ElementRange;
  EXPECT_EQ(ranges("99990,8,2", 1000)[0], (R{0, 1000}));
  EXPECT_EQ(ranges("99990,8,2", 1000)[1], (R{1000, 1000}));
  EXPECT_EQ(ranges("99990,8,2", 1000)[2], (R{1000, 1000}));
  EXPECT_EQ(ranges("99990,8,2", 100'000)[1], (R{99990, 99998}));
  EXPECT_EQ(ranges("1,1,1", 100'000)[1], (R{33333, 66667}));
  EXPECT_EQ(ranges("1,1", 5)[0], (R{0, 2}));  // 2.5 rounds to 2
  EXPECT_EQ(ranges("1,1", 7)[0], (R{0, 4}));  // 3.5 rounds to 4
  EXPECT_EQ(ranges("969, 30, 1", 1000)[2], (R{999, 1000}));
  EXPECT_FALSE(ranges("1", 10)[1].has_value());
  EXPECT_EQ(ranges("0.5/0/.5", 10)[2], (R{5, 10}));
}

TEST(Split, NonsenseIsRefused) {
  for (const char* text : {"", "a,b", "0,0,0", "1,2,3,4", "1.2.3"}) EXPECT_THROW(parse_split(text), UserError) << text;
}

TEST(Blend, DataPathIsReadAsMegatronDoes) {
  EXPECT_EQ(parse_blend({"a"}, "data_path").prefixes, std::vector<std::string>{"a"});
  EXPECT_TRUE(parse_blend({"a"}, "data_path").is_single());
  EXPECT_TRUE(parse_blend({"a", "b", "c"}, "data_path").weights.empty());
  EXPECT_TRUE(parse_blend({"a", "b"}, "data_path").weights.empty());
  const BlendSpec blend = parse_blend({"0.7", "a", "3e-1", "b"}, "data_path");
  EXPECT_EQ(blend.prefixes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(blend.weights, (std::vector<double>{0.7, 0.3}));
  EXPECT_FALSE(parse_blend({"1", "a"}, "data_path").is_single());
  EXPECT_THROW(parse_blend({"0.7", "a", "b", "0.3"}, "data_path"), UserError);
  EXPECT_THROW(parse_blend({"-1", "a", "1", "b"}, "data_path"), UserError);
}

TEST(Blend, GreedyOrderIsMegatrons) {
  const auto [datasets, samples] = build_blend_indices({0.5, 0.3, 0.2}, 12);
  const int64_t expected[] = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1};
  int64_t counts[3] = {};
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(datasets.at(i), expected[i]) << i;
    EXPECT_EQ(samples.at(i), counts[expected[i]]++) << i;
  }
  EXPECT_EQ(datasets.type(), IndexArray::Type::kInt16);
  EXPECT_EQ(samples.type(), IndexArray::Type::kInt64);
}

// Each set's rows come once in its own passes, in new orders, whatever the share.
TEST(RowMix, PassesHaveTheirSharesAndSetsGoOn) {
  const std::vector<MixedSet> sets = {{"a", 12, 2}, {"b", 6, 1}, {"c", 3, 1}};
  struct Case {
    MixEnd end;
    std::vector<int64_t> counts;
  };
  for (const auto& [end, counts] : {Case{MixEnd::kConcat, {12, 6, 3}}, Case{MixEnd::kFirstExhausted, {6, 3, 3}},
                                    Case{MixEnd::kAllExhausted, {12, 6, 6}}}) {
    const RowMix mix(sets, end, 7), again(sets, end, 7), other(sets, end, 8), still(sets, end, 7, /*moves=*/false);
    const int64_t n = mix.num_rows();
    std::vector<std::vector<int64_t>> drawn(3);
    std::vector<RowMix::Row> first, second, of_other;
    for (int64_t place = 0; place < 4 * n; ++place) {
      const RowMix::Row row = mix.at(place);
      drawn[row.set].push_back(row.row);
      EXPECT_EQ(again.at(place), row);
      EXPECT_EQ(still.at(place), mix.at(place % n));
      EXPECT_EQ(mix.number_at(place), row.row + (row.set > 0 ? 12 : 0) + (row.set > 1 ? 6 : 0));
      if (place < n) first.push_back(row), of_other.push_back(other.at(place));
      if (place >= n && place < 2 * n) second.push_back(row);
    }
    EXPECT_NE(first, second);
    EXPECT_NE(first, of_other);
    const RowMix plain(sets, end, 7, /*moves=*/true, /*shuffles=*/false);
    for (int64_t place = 0, set = 0, i = 0; place < n; ++place, ++i) {
      if (i == counts[static_cast<size_t>(set)]) ++set, i = 0;
      const int64_t size = sets[static_cast<size_t>(set)].num_rows;
      EXPECT_EQ(plain.at(place), (RowMix::Row{static_cast<size_t>(set), i % size})) << "one set after the other";
      const int64_t later = (i + counts[static_cast<size_t>(set)]) % size;
      EXPECT_EQ(plain.at(n + place), (RowMix::Row{static_cast<size_t>(set), later})) << "goes on";
    }
    for (size_t set = 0; set < 3; ++set) {
      EXPECT_EQ(mix.num_rows_of(set), counts[set]);
      EXPECT_EQ(std::ssize(drawn[set]), 4 * counts[set]);
      // As many of each row as its set's passes so far: all of them whole, with these numbers.
      std::vector<int64_t> times(static_cast<size_t>(sets[set].num_rows));
      for (const int64_t row : drawn[set]) ++times.at(static_cast<size_t>(row));
      EXPECT_EQ(times, std::vector<int64_t>(times.size(), 4 * counts[set] / sets[set].num_rows));
    }
  }
}

TEST(RowMix, SharesOfNoRowAndEndlessPassesAreRefused) {
  const std::vector<MixedSet> sets = {{"much", 1000, 1}, {"few", 3, 1e-16}};
  EXPECT_NE(test::error_of([&] { RowMix(sets, MixEnd::kFirstExhausted, 1); }).find("the set few"), std::string::npos);
  EXPECT_NE(test::error_of([&] { RowMix(sets, MixEnd::kAllExhausted, 1); }).find("sft_mix: a pass"), std::string::npos);
}

std::vector<int64_t> samples_of(const Order& order, const DataPosition& position) {
  std::vector<int64_t> samples;
  for (const PlacedRow& row : order.rows(position)) samples.push_back(row.row);
  return samples;
}

TEST(Order, SingleGivesConsecutiveChunks) {
  const Order order(RowOrder::kOnce, 20, "d");
  EXPECT_EQ(order.rows({.consumed_samples = 8, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2}),
            (std::vector<PlacedRow>{{10, 10}, {11, 11}}));
  EXPECT_EQ(samples_of(order, {.consumed_samples = 16, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2}),
            (std::vector<int64_t>{18, 19}));
  EXPECT_THROW(order.rows({.consumed_samples = 18, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 2}), UserError);
}

// Orders that Megatron's MegatronPretrainingRandomSampler gives with torch 2.
struct CyclicCase {
  bool sharding;
  int64_t total, micro_batch_size;
  std::vector<std::vector<int64_t>> batches[2];  // by data-parallel rank
};

TEST(Order, CyclicOrderIsMegatronsAcrossEpochs) {
  const CyclicCase cases[] = {
      {true,
       23,
       2,
       {{{4, 1}, {7, 5}, {3, 9}, {0, 8}, {6, 2}, {5, 6}, {1, 2}, {0, 8}},
        {{14, 11}, {17, 15}, {13, 19}, {10, 18}, {16, 12}, {15, 16}, {11, 12}, {10, 18}}}},
      {true,
       24,
       3,
       {{{8, 0, 5}, {9, 7, 4}, {2, 10, 3}, {1, 11, 6}, {1, 4, 6}, {8, 11, 0}, {5, 3, 2}, {9, 10, 7}},
        {{20, 12, 17},
         {21, 19, 16},
         {14, 22, 15},
         {13, 23, 18},
         {13, 16, 18},
         {20, 23, 12},
         {17, 15, 14},
         {21, 22, 19}}}},
      {false,
       24,
       3,
       {{{20, 3, 7}, {13, 4, 19}, {9, 11, 16}, {0, 15, 21}, {13, 18, 7}, {17, 4, 14}, {16, 5, 22}, {10, 12, 19}},
        {{5, 12, 2}, {17, 1, 22}, {18, 8, 10}, {14, 23, 6}, {2, 20, 6}, {23, 21, 11}, {1, 15, 3}, {0, 9, 8}}}}};
  for (const CyclicCase& c : cases) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Order order(c.sharding ? RowOrder::kSharded : RowOrder::kShuffled, c.total, "d");
      // Backwards, to show that a position needs nothing before it.
      for (int64_t m = 7; m >= 0; --m) {
        EXPECT_EQ(samples_of(order, {.consumed_samples = m * c.micro_batch_size * 2,
                                     .micro_batch_size = c.micro_batch_size,
                                     .dp_rank = rank,
                                     .dp_size = 2}),
                  c.batches[rank][static_cast<size_t>(m)])
            << "sharding " << c.sharding << ", rank " << rank << ", microbatch " << m;
      }
    }
  }
}

// Rows that the ranks of a layout read as places [0, num_places) of the training, from `begin` on.
std::vector<int64_t> unsharded_order(int64_t total, int64_t micro_batch_size, int64_t dp_size, int64_t begin,
                                     int64_t num_places) {
  std::vector<int64_t> rows(static_cast<size_t>(num_places), -1);
  for (int64_t rank = 0; rank < dp_size; ++rank) {
    const Order order(RowOrder::kShuffled, total, "d");
    for (int64_t consumed = begin; consumed < num_places; consumed += micro_batch_size * dp_size) {
      for (const PlacedRow& row : order.rows({consumed, micro_batch_size, rank, dp_size})) {
        if (row.place < num_places) rows[static_cast<size_t>(row.place)] = row.row;
      }
    }
  }
  return rows;
}

// 23 samples, which no layout's microbatches divide, in two passes: torch 2's randperm(23) from generators seeded 0, 1.
TEST(Order, WithoutShardingAPassIsOnePermutationOfAllSamplesInEveryLayout) {
  const std::vector<int64_t> two_passes = {19, 8,  16, 3,  15, 20, 22, 14, 4,  7,  6,  13, 9, 10, 1,  12,
                                           5,  17, 11, 2,  18, 0,  21, 9,  4,  20, 11, 22, 6, 13, 12, 1,
                                           19, 3,  2,  16, 7,  18, 0,  8,  10, 17, 15, 14, 5, 21};
  for (const int64_t micro_batch_size : {1, 2, 3, 4, 8, 30}) {
    for (const int64_t dp_size : {1, 2, 3}) {
      EXPECT_EQ(unsharded_order(23, micro_batch_size, dp_size, 0, 46), two_passes)
          << "micro_batch_size " << micro_batch_size << ", " << dp_size << " ranks";
    }
  }
}

TEST(Order, WithoutShardingARunGoesOnWithAnotherMicroBatchSize) {
  const std::vector<int64_t> whole = unsharded_order(23, 4, 1, 0, 60);
  for (const int64_t micro_batch_size : {1, 3, 5}) {
    const std::vector<int64_t> rest = unsharded_order(23, micro_batch_size, 2, 20, 60);
    EXPECT_TRUE(std::equal(whole.begin() + 20, whole.end(), rest.begin() + 20)) << micro_batch_size;
  }
}

TEST(Order, WithShardingAPositionBetweenMicrobatchesIsRefused) {
  const Order order(RowOrder::kSharded, 24, "d");
  try {
    order.rows({.consumed_samples = 6, .micro_batch_size = 4});
    FAIL() << "sample 6 begins no microbatch of 4";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.message()).find("has read 6 samples, and d is read 4 at a time"), std::string::npos)
        << error.message();
    EXPECT_NE(std::string(error.remedy()).find("--no_data_sharding"), std::string::npos);
  }
}

TEST(Order, TooLittleDataIsRefused) {
  const Order order(RowOrder::kSharded, 3, "d");
  EXPECT_THROW(order.rows({.consumed_samples = 0, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 2}), UserError);
  const Order empty(RowOrder::kShuffled, 0, "d");
  EXPECT_THROW(empty.rows({.consumed_samples = 0}), UserError);
}

TEST(Order, RepeatedAndPermutedPassesKnowOfNoLayout) {
  const uint64_t key = make_philox_key(7, "an order");
  for (const RowOrder kind : {RowOrder::kRepeated, RowOrder::kPermuted}) {
    const Order order(kind, 11, "d", key);
    std::vector<int64_t> rows;
    for (int64_t place = 0; place < 22; ++place) rows.push_back(samples_of(order, {.consumed_samples = place})[0]);
    for (int64_t place = 0; place < 22; ++place) {
      const bool is_permuted = kind == RowOrder::kPermuted;
      EXPECT_EQ(rows[static_cast<size_t>(place)],
                is_permuted ? permuted(key, static_cast<uint64_t>(place / 11), place % 11, 11) : place % 11);
    }
    EXPECT_EQ(samples_of(order, {.consumed_samples = 9, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2}),
              (std::vector<int64_t>{rows[11], rows[12]}));
  }
}

}  // namespace
}  // namespace megalith

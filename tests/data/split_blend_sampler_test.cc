// Splits, blends and samplers against Megatron's order.
#include "data/blend.h"
#include "data/sampler.h"
#include "data/split.h"
#include "data_fixture.h"

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

std::vector<int64_t> samples_of(Sampler& sampler, const DataPosition& position) {
  std::vector<int64_t> samples;
  for (const SampleRow& row : sampler.rows(position)) samples.push_back(row.sample);
  return samples;
}

TEST(Sampler, SingleGivesConsecutiveChunks) {
  Sampler sampler(DataloaderType::kSingle, 20, true, "d");
  EXPECT_EQ(sampler.rows({.consumed_samples = 8, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2}),
            (std::vector<SampleRow>{{10, 10}, {11, 11}}));
  EXPECT_EQ(samples_of(sampler, {.consumed_samples = 16, .micro_batch_size = 2, .dp_rank = 1, .dp_size = 2}),
            (std::vector<int64_t>{18, 19}));
  EXPECT_THROW(sampler.rows({.consumed_samples = 18, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 2}), UserError);
}

// Orders that Megatron's MegatronPretrainingRandomSampler gives with torch 2.
struct CyclicCase {
  bool sharding;
  int64_t total, micro_batch_size;
  std::vector<std::vector<int64_t>> batches[2];  // by data-parallel rank
};

TEST(Sampler, CyclicOrderIsMegatronsAcrossEpochs) {
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
       23,
       2,
       {{{10, 15}, {11, 9}, {19, 2}, {18, 7}, {6, 17}, {11, 6}, {3, 17}, {15, 9}},
        {{4, 3}, {5, 20}, {13, 0}, {16, 8}, {14, 1}, {18, 0}, {12, 1}, {7, 5}}}},
      {false,
       24,
       3,
       {{{20, 3, 7}, {13, 4, 19}, {9, 11, 16}, {0, 15, 21}, {13, 18, 7}, {17, 4, 14}, {16, 5, 22}, {10, 12, 19}},
        {{5, 12, 2}, {17, 1, 22}, {18, 8, 10}, {14, 23, 6}, {2, 20, 6}, {23, 21, 11}, {1, 15, 3}, {0, 9, 8}}}}};
  for (const CyclicCase& c : cases) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      Sampler sampler(DataloaderType::kCyclic, c.total, c.sharding, "d");
      // Backwards, to show that a position needs nothing before it.
      for (int64_t m = 7; m >= 0; --m) {
        EXPECT_EQ(samples_of(sampler, {.consumed_samples = m * c.micro_batch_size * 2,
                                       .micro_batch_size = c.micro_batch_size,
                                       .dp_rank = rank,
                                       .dp_size = 2}),
                  c.batches[rank][static_cast<size_t>(m)])
            << "sharding " << c.sharding << ", rank " << rank << ", microbatch " << m;
      }
    }
  }
}

TEST(Sampler, WithoutShardingTheGlobalOrderDoesNotDependOnTheRanks) {
  std::map<int64_t, int64_t> by_place[2];
  for (const int64_t dp_size : {1, 4}) {
    for (int64_t rank = 0; rank < dp_size; ++rank) {
      Sampler sampler(DataloaderType::kCyclic, 16, false, "d");
      for (int64_t consumed = 0; consumed < 32; consumed += 2 * dp_size) {
        for (const SampleRow& row : sampler.rows({consumed, 2, rank, dp_size})) {
          by_place[dp_size == 1 ? 0 : 1][row.in_order] = row.sample;
        }
      }
    }
  }
  EXPECT_EQ(by_place[0].size(), 32u);
  EXPECT_EQ(by_place[0], by_place[1]);
}

TEST(Sampler, TooLittleDataIsRefused) {
  Sampler sampler(DataloaderType::kCyclic, 3, true, "d");
  EXPECT_THROW(sampler.rows({.consumed_samples = 0, .micro_batch_size = 2, .dp_rank = 0, .dp_size = 2}), UserError);
}

}  // namespace
}  // namespace megalith

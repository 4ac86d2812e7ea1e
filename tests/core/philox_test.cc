// Philox against the vectors published with Random123 (kat_vectors), and what our addressing of elements promises.
#include "core/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace megalith {
namespace {

TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox(0, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~uint64_t{0}, ~uint64_t{0}}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x85a308d3243f6a88, 0x0370734413198a2e}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox(0, {0, 0})[0] == 0x6627e8d5);
  static_assert(make_philox_key(1, "a") != make_philox_key(2, "a"));
  static_assert(make_philox_key(1, "a") != make_philox_key(1, "b"));
}

// Checkpoints and layouts of other builds rely on these numbers: they may never change.
TEST(Philox, KeysAndValuesAreFrozen) {
  EXPECT_EQ(make_philox_key(1234, "model.layers.0.self_attn.q_proj.weight"), 9271708562177703128u);
  EXPECT_EQ(random_word_at(make_philox_key(1234, "x"), 5), 3320645396u);
}

TEST(Philox, AnySliceCanBeDrawnAlone) {
  const uint64_t key = make_philox_key(7, "w");
  std::vector<double> whole(37);
  fill_normal(key, 0, whole.data(), whole.size());
  for (uint64_t first : {0, 1, 3, 4, 30}) {
    for (uint64_t count : {0, 1, 2, 5, 7}) {
      std::vector<double> slice(count, -1);
      fill_normal(key, first, slice.data(), count);
      for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(slice[i], whole[first + i]) << first << "+" << i;
    }
  }
  for (uint64_t i = 0; i < whole.size(); ++i) EXPECT_EQ(normal_at(key, i), whole[i]) << i;
}

TEST(Philox, StreamsAndFarIndicesAreIndependent) {
  const uint64_t key = make_philox_key(7, "w");
  EXPECT_NE(random_word_at(key, 0, 0), random_word_at(key, 0, 1));
  EXPECT_NE(random_word_at(key, 0), random_word_at(key, uint64_t{1} << 34));
  EXPECT_EQ(random_word_at(key, 6, 3), philox(key, {1, 3})[2]);
}

TEST(Philox, UniformStaysInItsRange) {
  EXPECT_EQ(uniform_from_word(0), 0.0);
  EXPECT_LT(uniform_from_word(0xffffffff), 1.0);
}

TEST(Philox, MomentsAreThoseOfTheDistributions) {
  const uint64_t key = make_philox_key(99, "moments");
  constexpr uint64_t kCount = 200'000;
  double uniform_sum = 0, sum = 0, square = 0, fourth = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double z = normal_at(key, i);
    uniform_sum += uniform_at(key, i);
    sum += z;
    square += z * z;
    fourth += z * z * z * z;
  }
  // Five standard errors: 0.289, 1, sqrt(2) and sqrt(96) over sqrt(200000).
  EXPECT_NEAR(uniform_sum / kCount, 0.5, 5 * 0.289 / 447);
  EXPECT_NEAR(sum / kCount, 0.0, 5 * 1.0 / 447);
  EXPECT_NEAR(square / kCount, 1.0, 5 * 1.42 / 447);
  EXPECT_NEAR(fourth / kCount, 3.0, 5 * 9.8 / 447);
}

}  // namespace
}  // namespace megalith

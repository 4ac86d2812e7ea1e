// Frequencies against values computed with transformers, and the shape of the tables.
#include "nn/rotary_embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

struct Expected {
  int64_t dim;
  double factor;
  std::vector<std::pair<int64_t, double>> values;
};

TEST(RotaryFrequencies, Llama3RuleAgreesWithTransformers) {
  const Expected cases[] = {
      {128,
       8,
       {{0, 1},
        {1, .81461722},
        {32, 5.2484602e-4},
        {33, 3.1269365e-4},
        {34, 1.7850779e-4},
        {36, 7.7846555e-5},
        {40, 3.4281024e-5},
        {63, 3.0689259e-7}}},
      {64,
       8,
       {{1, .66360128},
        {16, 5.2484602e-4},
        {17, 1.7850779e-4},
        {18, 7.7846555e-5},
        {20, 3.4281024e-5},
        {24, 6.6478697e-6},
        {31, 3.7673226e-7}}},
      {64,
       32,
       {{16, 4.2955671e-4},
        {17, 9.7082862e-5},
        {18, 1.9461639e-5},
        {20, 8.5702559e-6},
        {24, 1.6619674e-6},
        {31, 9.4183065e-8}}},
      {128,
       32,
       {{32, 4.2955671e-4},
        {33, 2.2276341e-4},
        {34, 9.7082862e-5},
        {36, 1.9461639e-5},
        {40, 8.5702559e-6},
        {63, 7.6723147e-8}}},
  };
  for (const Expected& expected : cases) {
    const at::Tensor inv_freq = rotary_inverse_frequencies(
        expected.dim, {.rotary_base = 5e5, .use_rope_scaling = true, .rope_scaling_factor = expected.factor});
    ASSERT_EQ(inv_freq.numel(), expected.dim / 2);
    for (const auto& [index, value] : expected.values) {
      // Eight digits are printed, and float32 keeps 2^-24.
      EXPECT_NEAR(inv_freq[index].item<double>(), value, 2e-7 * value) << "dim " << expected.dim << " index " << index;
    }
  }
}

struct YarnCase {
  int64_t dim;
  double base;
  YarnOptions options;
  double multiplier;
  std::vector<double> values;  // all of them, float32 as transformers 4.57.1 computed them
};

TEST(RotaryFrequencies, InterpolationStretchesAllAndLocalOnesNone) {
  RotaryOptions options{.rotary_base = 1e6, .rotary_seq_len_interpolation_factor = 8};
  const at::Tensor plain = rotary_inverse_frequencies(16, RotaryOptions{.rotary_base = 1e6});
  EXPECT_TRUE(at::equal(rotary_inverse_frequencies(16, options), plain / 8));  // as transformers' "linear"
  EXPECT_TRUE(options.is_stretched());
  EXPECT_FALSE(options.local(1e4).is_stretched());
  EXPECT_TRUE(at::equal(rotary_inverse_frequencies(16, options.local(1e6)), plain));
}

TEST(RotaryFrequencies, YarnRuleAgreesWithTransformers) {
  const YarnCase cases[] = {
      {64,
       10000,
       {.rotary_scaling_factor = 40, .mscale = 0.707, .mscale_all_dim = 0.707},
       1,
       {0x1p+0,         0x1.7ff222p-1,  0x1.1feb34p-1,  0x1.afd136p-2,  0x1.43d136p-2,  0x1.e5a846p-3,  0x1.6c310ep-3,
        0x1.111aeep-3,  0x1.99999ap-4,  0x1.33281ap-4,  0x1.ccab84p-5,  0x1.3f8b74p-5,  0x1.b86436p-6,  0x1.2d1b86p-6,
        0x1.97e506p-7,  0x1.111aeep-7,  0x1.6872b2p-8,  0x1.d2e0ccp-9,  0x1.26d42cp-9,  0x1.67459ap-10, 0x1.9e7c6ep-11,
        0x1.b32624p-12, 0x1.74eea6p-13, 0x1.17a8e2p-15, 0x1.a36e2ep-16, 0x1.3a8746p-16, 0x1.d7b9ep-17,  0x1.61bea2p-17,
        0x1.094566p-17, 0x1.8dd9bap-18, 0x1.2a5884p-18, 0x1.bf749ep-19}},
      {10,
       500,
       {.rotary_scaling_factor = 4,
        .mscale_all_dim = 0.5,
        .beta_fast = 8,
        .beta_slow = 2,
        .original_max_position_embeddings = 64},
       1.0648216253695715,
       {0x1p+0, 0x1.7154c8p-3, 0x1.550388p-6, 0x1.89959cp-8, 0x1.c64266p-10}},
      // The blend begins and ends at one channel, and nothing is said of mscale.
      {8,
       500,
       {.rotary_scaling_factor = 3,
        .mscale_all_dim = 0,
        .beta_fast = 2,
        .beta_slow = 2,
        .original_max_position_embeddings = 64},
       1.109861228866811,
       {0x1p+0, 0x1.b11968p-3, 0x1.e879fcp-7, 0x1.9d3368p-9}},
  };
  for (const YarnCase& yarn : cases) {
    const at::Tensor inv_freq = rotary_inverse_frequencies(yarn.dim, yarn.base, yarn.options);
    ASSERT_EQ(inv_freq.numel(), static_cast<int64_t>(yarn.values.size()));
    for (int64_t i = 0; i < inv_freq.numel(); ++i) {
      const double expected = yarn.values[static_cast<size_t>(i)];
      // Vectorised powers differ by the last bit from one kind of processor to another; no bit is lost after them.
      EXPECT_NEAR(inv_freq[i].item<double>(), expected, 0x1p-22 * expected) << yarn.dim << " index " << i;
    }
    EXPECT_DOUBLE_EQ(rotary_multiplier(yarn.options), yarn.multiplier);
  }
}

// The rule is that of latent attention, which was compared above; only the options have other names.
TEST(RotaryFrequencies, OrdinaryHeadsAreStretchedByTheSameYarn) {
  const YarnOptions latent{.rotary_scaling_factor = 4,
                           .mscale_all_dim = 0,
                           .beta_fast = 8,
                           .beta_slow = 2,
                           .original_max_position_embeddings = 64};
  RotaryOptions heads{.rotary_base = 500,
                      .use_rope_scaling = true,
                      .rope_scaling_type = RopeScalingType::kYarn,
                      .rope_scaling_factor = 4,
                      .rope_scaling_original_max_position_embeddings = 64,
                      .rope_scaling_beta_fast = 8,
                      .rope_scaling_beta_slow = 2};
  EXPECT_TRUE(at::equal(rotary_inverse_frequencies(10, heads), rotary_inverse_frequencies(10, 500, latent)));
  EXPECT_EQ(heads.rope_scaling_multiplier(), rotary_multiplier(latent));
  heads.rope_scaling_attention_factor = 1.25;
  EXPECT_EQ(heads.rope_scaling_multiplier(), 1.25);
  // All of them, float32 as transformers 4.57.1 computed them, where the blend begins and ends between two channels.
  heads.rope_scaling_truncate = false;
  const at::Tensor inv_freq = rotary_inverse_frequencies(10, heads);
  const double expected[] = {0x1p+0, 0x1.0ecbf2p-3, 0x1.550388p-6, 0x1.89959cp-8, 0x1.c64266p-10};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(inv_freq[i].item<double>(), expected[i], 0x1p-22 * expected[i]) << "index " << i;
  }
  heads.use_rope_scaling = false;
  EXPECT_EQ(heads.rope_scaling_multiplier(), 1);
  EXPECT_TRUE(at::equal(rotary_inverse_frequencies(10, heads), rotary_inverse_frequencies(10, {.rotary_base = 500})));
}

TEST(RotaryFrequencies, YarnThatStretchesNothingIsNone) {
  for (const YarnOptions& options :
       {YarnOptions{.rotary_scaling_factor = 1, .mscale = 0.5},
        YarnOptions{.rope_type = RopeType::kRope, .rotary_scaling_factor = 40, .mscale = 0.5}}) {
    EXPECT_FALSE(options.has_yarn());
    EXPECT_EQ(rotary_multiplier(options), 1);
    EXPECT_TRUE(
        at::equal(rotary_inverse_frequencies(8, 500, options), rotary_inverse_frequencies(8, {.rotary_base = 500})));
  }
}

TEST(RotaryFrequencies, YarnScalesTheScores) {
  EXPECT_NEAR(yarn_mscale(40, 0.707), 1.2608037774, 1e-10);
  EXPECT_NEAR(yarn_mscale(40, 1), 1.3688879454, 1e-10);
  EXPECT_EQ(yarn_mscale(1, 5), 1);
  EXPECT_EQ(yarn_mscale(0.5, 5), 1);
  EXPECT_EQ(yarn_mscale(40, 0), 1);
  // DeepSeek-V3's; published weights of a shorter length are read with rope_type rope, and keep the scale.
  for (const RopeType type : {RopeType::kYarn, RopeType::kRope}) {
    const YarnOptions options{.rope_type = type, .rotary_scaling_factor = 40, .mscale_all_dim = 1};
    EXPECT_NEAR(options.softmax_factor(), 1.3688879454 * 1.3688879454, 1e-9);
  }
}

TEST(RotaryAngles, AreMultiplied) {
  const at::Tensor inv_freq = rotary_inverse_frequencies(4, {.rotary_base = 100});
  const at::Tensor positions = at::arange(6, at::kLong).unsqueeze(0);
  const RotaryAngles plain = compute_rotary_angles(positions, inv_freq, at::kFloat);
  const RotaryAngles longer = compute_rotary_angles(positions, inv_freq, at::kFloat, 1.25);
  EXPECT_TRUE(at::equal(longer.cos, plain.cos * 1.25));
  EXPECT_TRUE(at::equal(longer.sin, plain.sin * 1.25));
}

TEST(RotaryAngles, RowsThatAreOneExpandedRowShareATable) {
  const at::Tensor inv_freq = rotary_inverse_frequencies(8, {.rotary_base = 100});
  const at::Tensor row = at::arange(5, at::kLong).unsqueeze(0);
  const RotaryAngles shared = compute_rotary_angles(row.expand({3, 5}), inv_freq, at::kBFloat16);
  EXPECT_EQ(shared.cos.sizes(), (std::vector<int64_t>{1, 5, 4}));
  EXPECT_EQ(shared.cos.scalar_type(), at::kFloat);
  const RotaryAngles own = compute_rotary_angles(row.repeat({3, 1}), inv_freq, at::kDouble);
  EXPECT_EQ(own.cos.sizes(), (std::vector<int64_t>{3, 5, 4}));
  EXPECT_EQ(own.sin.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(own.sin[2].to(at::kFloat), shared.sin[0]));
  EXPECT_NEAR(shared.sin[0][3][1].item<double>(), std::sin(3 * std::pow(100.0, -2.0 / 8)), 1e-6);
}

}  // namespace
}  // namespace megalith

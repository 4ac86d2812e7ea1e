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
        {.dim = expected.dim, .base = 5e5, .scaling = RopeScaling{.factor = expected.factor}});
    ASSERT_EQ(inv_freq.numel(), expected.dim / 2);
    for (const auto& [index, value] : expected.values) {
      // Eight digits are printed, and float32 keeps 2^-24.
      EXPECT_NEAR(inv_freq[index].item<double>(), value, 2e-7 * value) << "dim " << expected.dim << " index " << index;
    }
  }
}

TEST(RotaryAngles, RowsThatAreOneExpandedRowShareATable) {
  const at::Tensor inv_freq = rotary_inverse_frequencies({.dim = 8, .base = 100});
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

// merge_attention_: against attention over all keys at once, and every form against the reference.
#include "ops/merge_attention/merge_attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "ops/attention/attention.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::merge_attention_test {
namespace {

using at::Tensor;
using MergingAttention = testing::OnDevice;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Parts {
  Tensor out, lse, more_out, more_lse;
};

// out and more_out are views into tensors of more tokens and, for more_out, of heads that come before tokens.
Parts make_parts(int64_t b, int64_t s, int64_t n, int64_t e, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {testing::randn({b, s + 2, n, e}).to(wide).narrow(1, 1, s),
          testing::randn({b, n, s + 2}).to(wide).narrow(2, 2, s),
          testing::randn({b, n, s, e}).to(dtype).transpose(1, 2), (testing::randn({b, n, s}) * 3).to(wide)};
}

TEST_P(MergingAttention, MatchesReferenceAndFloat64) {
  at::manual_seed(1);
  constexpr int64_t kShapes[][4] = {{1, 1, 1, 1}, {2, 5, 3, 7}, {2, 3, 2, 64}, {1, 67, 4, 20}};
  for (const auto& [b, s, n, e] : kShapes) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Parts parts = make_parts(b, s, n, e, dtype);
      const auto merged = [&](at::ScalarType wide, const Tensor& more_out, Kernels kernels) {
        // Copies that keep the strides of views.
        const Tensor out = at::empty_strided({b, s, n, e}, parts.out.strides(), parts.out.options().dtype(wide));
        const Tensor lse = at::empty_strided({b, n, s}, parts.lse.strides(), parts.lse.options().dtype(wide));
        out.copy_(parts.out);
        lse.copy_(parts.lse);
        merge_attention_(out, lse, more_out, parts.more_lse.to(wide), kernels);
        return std::pair{out, lse};
      };
      const auto [out, lse] = merged(parts.out.scalar_type(), parts.more_out, Kernels::kFused);
      const auto [reference_out, reference_lse] = merged(parts.out.scalar_type(), parts.more_out, Kernels::kReference);
      const auto [exact_out, exact_lse] = merged(at::kDouble, parts.more_out.to(at::kDouble), Kernels::kReference);
      const auto what = fmt::format("({}, {}, {}, {}) {}", b, s, n, e, c10::toString(dtype));
      // Weights come from differences of log-sum-exps of up to 16, whose roundings the exponential passes on; numbers
      // are up to 5.
      const double bound = dtype == at::kDouble ? 1e-13 : 2e-5;
      EXPECT_TENSOR_NEAR(out, exact_out, {.abs = bound, .what = what});
      EXPECT_TENSOR_NEAR(lse, exact_lse, {.abs = bound, .what = what});
      EXPECT_TENSOR_NEAR(out, reference_out, {.abs = bound, .what = what + " reference"});
      EXPECT_TENSOR_NEAR(lse, reference_lse, {.abs = bound, .what = what + " reference"});
    }
  }
}

TEST_P(MergingAttention, PartsOfTheKeysGiveAttentionOverAllOfThem) {
  at::manual_seed(2);
  const int64_t b = 2, s = 6, n = 4, d = 8, keys = 10, first = 3;
  const auto draw = [&](int64_t tokens, int64_t heads) { return testing::randn({b, tokens, heads, d}, at::kDouble); };
  const Tensor q = draw(s, n), k = draw(keys, 2), v = draw(keys, 2);
  const auto attend = [&](int64_t from, int64_t count) {
    return attention_forward(q, k.narrow(1, from, count), v.narrow(1, from, count), 0.5, {.is_causal = false}, {});
  };
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const auto [out, lse] = attend(0, first);
    const auto [more_out, more_lse] = attend(first, keys - first);
    const auto [whole_out, whole_lse] = attend(0, keys);
    merge_attention_(out, lse, more_out, more_lse, kernels);
    EXPECT_TENSOR_NEAR(out, whole_out, {.abs = 1e-13});  // a few roundings of numbers of order one
    EXPECT_TENSOR_NEAR(lse, whole_lse, {.abs = 1e-13});
  }
}

TEST_P(MergingAttention, RowsThatHaveSeenNothingTakeWhatComes) {
  at::manual_seed(3);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const Tensor out = testing::zeros({1, 2, 1, 4}, at::kFloat),
                 lse = testing::full({1, 1, 2}, kMinusInfinity, at::kFloat);
    const Tensor more = testing::randn({1, 2, 1, 4}),
                 more_lse = testing::tensor({1.5, kMinusInfinity}, at::kFloat).view({1, 1, 2});
    more.select(1, 1).zero_();
    merge_attention_(out, lse, more, more_lse, kernels);
    EXPECT_TENSOR_NEAR(out, more, {.abs = 0});
    EXPECT_TRUE(lse.cpu().equal(more_lse.cpu()));
    // And the other way round.
    merge_attention_(out, lse, at::zeros_like(more), at::full_like(more_lse, kMinusInfinity), kernels);
    EXPECT_TENSOR_NEAR(out, more, {.abs = 0});
    EXPECT_TRUE(lse.cpu().equal(more_lse.cpu()));
  }
}

TEST(MergingAttention, WrongArgumentsAreNamed) {
  const Tensor out = at::ones({1, 2, 3, 4}), lse = at::ones({1, 3, 2});
  EXPECT_THROW(merge_attention_(out, at::ones({1, 2, 3}), out, lse), UserError);
  EXPECT_THROW(merge_attention_(out, lse, out, at::ones({1, 2, 3})), UserError);
  EXPECT_THROW(merge_attention_(out.to(at::kBFloat16), lse, out.to(at::kBFloat16), lse), UserError);
  EXPECT_THROW(merge_attention_(out, lse, out.to(at::kDouble), lse), UserError);
  EXPECT_THROW(merge_attention_(out, lse, at::ones({1, 2, 4, 3}).transpose(2, 3), lse), UserError);
  EXPECT_THROW(merge_attention_(out, lse, at::ones({1, 2, 3, 5}), lse), UserError);
}

MEGALITH_ON_EVERY_DEVICE(MergingAttention);

}  // namespace
}  // namespace megalith::ops::merge_attention_test

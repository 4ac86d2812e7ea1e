// merge_attention's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include <cmath>
#include <limits>

#include "gpu_kernels/expect.h"
#include "ops/merge_attention/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// out has more tokens than are merged, and heads of more_out come before tokens.
struct MergeCase {
  Dtype dtype;
  int64_t batch, tokens, heads, channels;
  int64_t shift = 0;  // of the arrays, in elements

  static constexpr int64_t kMoreTokens = 2;
  int64_t out_place(int64_t b, int64_t s, int64_t n) const {
    return (b * (tokens + kMoreTokens) + s) * heads * channels + n * channels;
  }
  int64_t more_place(int64_t b, int64_t s, int64_t n) const { return ((b * heads + n) * tokens + s) * channels; }
  int64_t lse_place(int64_t b, int64_t s, int64_t n) const { return (b * heads + n) * (tokens + kMoreTokens) + s; }
  int64_t more_lse_place(int64_t b, int64_t s, int64_t n) const { return (b * heads + n) * tokens + s; }
};

struct MergeInputs {
  Array out, lse, more_out, more_lse;

  explicit MergeInputs(const MergeCase& c)
      : out(testing::wide_of(c.dtype), c.out_place(c.batch, 0, 0), c.shift),
        lse(testing::wide_of(c.dtype), c.lse_place(c.batch, 0, 0), c.shift),
        more_out(c.dtype, c.more_place(c.batch, 0, 0), c.shift),
        more_lse(testing::wide_of(c.dtype), c.more_lse_place(c.batch, 0, 0), c.shift) {
    std::mt19937 generator(static_cast<unsigned>(c.tokens * 1000 + c.channels));
    for (Array* array : {&out, &lse, &more_out, &more_lse}) array->draw(generator, 0, 3);
    // Rows that have seen nothing: before, in what comes, and in both.
    if (lse.count() > 2) lse.set(0, kNothing);
    if (more_lse.count() > 2) {
      more_lse.set(1, kNothing);
      lse.set(lse.count() - 1 - MergeCase::kMoreTokens, kNothing);
      more_lse.set(more_lse.count() - 1, kNothing);
    }
  }
};

Array copy_of(const Array& array, int64_t shift) {
  Array copy(array.dtype(), array.count(), shift);
  std::memcpy(copy.data(), array.data(), array.bytes());
  return copy;
}

std::vector<Array> run(const MergeCase& c, const MergeInputs& in) {
  std::vector<Array> results;
  results.push_back(copy_of(in.out, c.shift));
  results.push_back(copy_of(in.lse, c.shift));
  gpu::merge_attention(
      {.dtype = c.dtype,
       .batch = c.batch,
       .tokens = c.tokens,
       .heads = c.heads,
       .channels = c.channels,
       .out = results[0].data(),
       .out_strides = {c.out_place(1, 0, 0), c.out_place(0, 1, 0), c.out_place(0, 0, 1)},
       .lse = results[1].data(),
       .lse_strides = {c.lse_place(1, 0, 0), c.lse_place(0, 1, 0), c.lse_place(0, 0, 1)},
       .more_out = in.more_out.data(),
       .more_out_strides = {c.more_place(1, 0, 0), c.more_place(0, 1, 0), c.more_place(0, 0, 1)},
       .more_lse = in.more_lse.data(),
       .more_lse_strides = {c.more_lse_place(1, 0, 0), c.more_lse_place(0, 1, 0), c.more_lse_place(0, 0, 1)}},
      nullptr);
  return results;
}

void check(const MergeCase& c, const MergeInputs& in, const std::vector<Array>& results) {
  std::vector<Expected> out, lse;
  // Tokens that are not merged stay.
  for (int64_t i = 0; i < in.out.count(); ++i) out.push_back({in.out[i], 0});
  for (int64_t i = 0; i < in.lse.count(); ++i) lse.push_back({in.lse[i], 0});
  const double wide = c.dtype == Dtype::kFloat64 ? 1e-14 : 1e-6;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t s = 0; s < c.tokens; ++s) {
      for (int64_t n = 0; n < c.heads; ++n) {
        const double so_far = in.lse[c.lse_place(b, s, n)], more = in.more_lse[c.more_lse_place(b, s, n)];
        const double larger = std::max(so_far, more), smaller = std::min(so_far, more);
        const bool is_empty = std::isinf(larger);
        const double both = is_empty ? larger : larger + std::log1p(std::exp(smaller - larger));
        const double weight = is_empty ? 0 : std::exp(so_far - both),
                     more_weight = is_empty ? 0 : std::exp(more - both);
        // Infinity minus infinity is no number that a bound could hold.
        ASSERT_TRUE(!is_empty || std::isinf(results[1][c.lse_place(b, s, n)])) << "lse is finite instead of infinite";
        lse[static_cast<size_t>(c.lse_place(b, s, n))] = {both, wide * (std::abs(both) + 1)};
        for (int64_t i = 0; i < c.channels; ++i) {
          const double old = in.out[c.out_place(b, s, n) + i], added = in.more_out[c.more_place(b, s, n) + i];
          // The exponential passes on what rounds the difference of two numbers of up to 16.
          const double bound = 20 * wide * (std::abs(old) * weight + std::abs(added) * more_weight);
          out[static_cast<size_t>(c.out_place(b, s, n) + i)] = {old * weight + added * more_weight, bound};
        }
      }
    }
  }
  testing::expect_near(results[0], out, "out");
  for (int64_t i = 0; i < in.lse.count(); ++i) {
    const auto [value, bound] = lse[static_cast<size_t>(i)];
    const double found = results[1][i];
    ASSERT_TRUE(std::isinf(value) ? found == value : std::abs(found - value) <= bound)
        << "lse[" << i << "] is " << found << " instead of " << value;
  }
}

void try_merge(const MergeCase& c) {
  const MergeInputs in(c);
  testing::in_every_order(
      "(" + std::to_string(c.batch) + ", " + std::to_string(c.tokens) + ", " + std::to_string(c.heads) + ", " +
          std::to_string(c.channels) + ") " + testing::name_of(c.dtype) + (c.shift != 0 ? " not aligned" : ""),
      [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
}

TEST(MergeAttentionKernels, EqualLoopsInDoubleInEveryOrder) {
  // One number; odd; whole vectors; more rows than a block has.
  constexpr int64_t kShapes[][4] = {{1, 1, 1, 1}, {2, 3, 3, 7}, {2, 5, 3, 16}, {1, 90, 3, 12}};
  for (const auto& [batch, tokens, heads, channels] : kShapes) {
    for (const Dtype dtype : testing::dtypes()) {
      try_merge({dtype, batch, tokens, heads, channels});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MergeAttentionKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    try_merge({.dtype = dtype, .batch = 2, .tokens = 3, .heads = 2, .channels = 8, .shift = 1});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::ops

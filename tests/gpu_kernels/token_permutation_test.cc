// The GPU kernels of the tokens' permutation under emulation: maps against a stable sort, rows against loops in double,
// equal to the bit in every order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpu_kernels/expect.h"
#include "ops/token_permutation/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;
using Numbers = std::vector<int64_t>;

struct PermutationCase {
  Dtype dtype;
  int64_t tokens, k, experts, columns;
  bool drops = false;     // a quarter of the pairs
  int64_t padding = 0;    // rows of padding after each expert's
  int64_t row_space = 0;  // between rows of x, y and dout, in elements
  int64_t shift = 0;      // of the arrays of `dtype`, in elements

  int64_t stride() const { return columns + row_space; }
  std::string what() const {
    return std::to_string(tokens) + " tokens, " + std::to_string(k) + " of " + std::to_string(experts) + " experts, " +
           std::to_string(columns) + " columns, rows " + std::to_string(stride()) + " apart, " +
           testing::name_of(dtype) + (drops ? ", some dropped" : "") + (shift != 0 ? ", not aligned" : "");
  }
};

// Who goes where, and the maps of that as a stable sort makes them.
struct Routed {
  Numbers experts, counts, offsets, pairs, source, slots;
  std::unique_ptr<bool[]> keep;

  explicit Routed(const PermutationCase& c) {
    std::mt19937 generator(static_cast<unsigned>(c.tokens * 100 + c.experts));
    const int64_t n = c.tokens * c.k;
    keep = std::make_unique<bool[]>(static_cast<size_t>(n));
    for (int64_t pair = 0; pair < n; ++pair) {
      // Crowded: half of the pairs want the first three experts.
      const auto range = static_cast<unsigned>(generator() % 2 == 0 ? std::min<int64_t>(3, c.experts) : c.experts);
      experts.push_back(static_cast<int64_t>(generator() % range));
      keep[static_cast<size_t>(pair)] = !c.drops || generator() % 4 != 0;
    }
    Numbers order;
    for (int64_t pair = 0; pair < n; ++pair) {
      if (keep[static_cast<size_t>(pair)]) order.push_back(pair);
    }
    const auto expert_of = [&](int64_t pair) { return experts[static_cast<size_t>(pair)]; };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return expert_of(a) < expert_of(b); });
    counts.resize(static_cast<size_t>(c.experts));
    slots.resize(static_cast<size_t>(n), -1);
    for (const int64_t pair : order) {
      ++counts[static_cast<size_t>(expert_of(pair))];
      slots[static_cast<size_t>(pair)] = static_cast<int64_t>(pairs.size());
      pairs.push_back(pair);
      source.push_back(pair / c.k);
    }
    offsets.resize(counts.size() + 1);
    std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  }

  // Adds `padding` rows after each expert's.
  void pad(const PermutationCase& c) {
    Numbers wide;
    for (int64_t e = 0; e < c.experts; ++e) {
      for (int64_t row = offsets[static_cast<size_t>(e)]; row < offsets[static_cast<size_t>(e) + 1]; ++row) {
        slots[static_cast<size_t>(pairs[static_cast<size_t>(row)])] = static_cast<int64_t>(wide.size());
        wide.push_back(source[static_cast<size_t>(row)]);
      }
      wide.insert(wide.end(), static_cast<size_t>(c.padding), -1);
    }
    source = std::move(wide);
  }
};

// Numbers that no map has, to see whether all are written.
Numbers unwritten(size_t count) { return Numbers(count, -77); }

TEST(TokenPermutationKernels, SortAsAStableSortDoes) {
  // No token; one; less than a block of pairs; exactly one; several, so that sums go over blocks; more blocks and more
  // experts than a block has threads.
  std::vector<PermutationCase> cases{{.tokens = 37, .k = 2, .experts = 5}, {.tokens = 100, .k = 3, .experts = 20}};
  if (testing::is_thorough()) {
    cases.insert(cases.end(), {{.tokens = 200, .k = 3, .experts = 300},
                               {.tokens = 0, .k = 2, .experts = 4},
                               {.tokens = 1, .k = 1, .experts = 1},
                               {.tokens = 128, .k = 2, .experts = 8},
                               {.tokens = 8300, .k = 8, .experts = 3}});
  }
  for (PermutationCase c : cases) {
    for (const bool drops : {false, true}) {
      c.drops = drops;
      const Routed expected(c);
      for (const int wave_size : {32, 64}) {
        SCOPED_TRACE(c.what() + ", waves of " + std::to_string(wave_size));
        gpu_emulation::set_settings({.wave_size = wave_size, .order_seed = 1});
        const size_t n = expected.experts.size(), e = expected.counts.size();
        Numbers counts = unwritten(e), offsets = unwritten(e + 1), pairs = unwritten(n), source = pairs, slots = pairs;
        std::vector<int32_t> scratch(e * ((n + gpu::kSortedPairs - 1) / gpu::kSortedPairs), -77);
        gpu::sort_by_expert({.num_pairs = static_cast<int64_t>(n),
                             .num_experts = c.experts,
                             .k = c.k,
                             .rows_per_expert = -1,
                             .experts = expected.experts.data(),
                             .keep = drops ? expected.keep.get() : nullptr,
                             .counts = counts.data(),
                             .offsets = offsets.data(),
                             .pairs = pairs.data(),
                             .source = source.data(),
                             .slots = slots.data(),
                             .scratch = scratch.data()},
                            nullptr);
        EXPECT_EQ(counts, expected.counts);
        EXPECT_EQ(offsets, expected.offsets);
        EXPECT_EQ(slots, expected.slots);
        Numbers padded_pairs = expected.pairs, padded_source = expected.source;
        padded_pairs.resize(n, -1);
        padded_source.resize(n, -1);
        EXPECT_EQ(pairs, padded_pairs);
        EXPECT_EQ(source, padded_source);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(TokenPermutationKernels, PaddingFillsEveryExpertAndWhatIsBeyondIsDropped) {
  // No token; room for all; too little for the crowded experts; more padding than pairs.
  struct Size {
    int64_t tokens, k, experts, rows_per_expert;
  };
  for (const Size& size : {Size{0, 2, 4, 3}, {37, 2, 5, 74}, {100, 3, 20, 30}, {3, 1, 7, 300}, {5, 2, 3, 0}}) {
    const PermutationCase c{.tokens = size.tokens, .k = size.k, .experts = size.experts, .drops = true};
    const Routed routed(c);
    const auto n = routed.experts.size(), rows = static_cast<size_t>(size.experts * size.rows_per_expert);
    Numbers expected_pairs(rows, -1), expected_source = expected_pairs, expected_slots(n, -1), expected_offsets{0};
    for (int64_t e = 0; e < size.experts; ++e) {
      const int64_t first = routed.offsets[static_cast<size_t>(e)], count = routed.counts[static_cast<size_t>(e)];
      for (int64_t i = 0; i < std::min(count, size.rows_per_expert); ++i) {
        const auto row = static_cast<size_t>(e * size.rows_per_expert + i), from = static_cast<size_t>(first + i);
        expected_pairs[row] = routed.pairs[from];
        expected_source[row] = routed.source[from];
        expected_slots[static_cast<size_t>(routed.pairs[from])] = static_cast<int64_t>(row);
      }
      expected_offsets.push_back((e + 1) * size.rows_per_expert);
    }
    for (const int wave_size : {32, 64}) {
      SCOPED_TRACE(c.what() + ", " + std::to_string(size.rows_per_expert) + " rows each");
      gpu_emulation::set_settings({.wave_size = wave_size, .order_seed = 1});
      Numbers counts = unwritten(routed.counts.size()), offsets = unwritten(counts.size() + 1);
      Numbers pairs = unwritten(rows), source = pairs, slots = unwritten(n);
      std::vector<int32_t> scratch(counts.size() * ((n + gpu::kSortedPairs - 1) / gpu::kSortedPairs), -77);
      gpu::sort_by_expert({.num_pairs = static_cast<int64_t>(n),
                           .num_experts = size.experts,
                           .k = size.k,
                           .rows_per_expert = size.rows_per_expert,
                           .experts = routed.experts.data(),
                           .keep = routed.keep.get(),
                           .counts = counts.data(),
                           .offsets = offsets.data(),
                           .pairs = pairs.data(),
                           .source = source.data(),
                           .slots = slots.data(),
                           .scratch = scratch.data()},
                          nullptr);
      EXPECT_EQ(counts, routed.counts);
      EXPECT_EQ(offsets, expected_offsets);
      EXPECT_EQ(pairs, expected_pairs);
      EXPECT_EQ(source, expected_source);
      EXPECT_EQ(slots, expected_slots);
      if (HasFailure()) return;
    }
  }
}

TEST(TokenPermutationKernels, ExpertsThatDoNotExistTakeNoRow) {
  const Numbers experts{1, 2, -1, 0};
  Numbers counts = unwritten(2), offsets = unwritten(3), pairs = unwritten(4), source = pairs, slots = pairs;
  std::vector<int32_t> scratch(2);
  gpu::sort_by_expert({.num_pairs = 4,
                       .num_experts = 2,
                       .k = 1,
                       .rows_per_expert = -1,
                       .experts = experts.data(),
                       .keep = nullptr,
                       .counts = counts.data(),
                       .offsets = offsets.data(),
                       .pairs = pairs.data(),
                       .source = source.data(),
                       .slots = slots.data(),
                       .scratch = scratch.data()},
                      nullptr);
  EXPECT_EQ(offsets, (Numbers{0, 1, 2}));
  EXPECT_EQ(slots, (Numbers{1, -1, -1, 0}));
  EXPECT_EQ(source, (Numbers{3, 0, -1, -1}));
}

struct PermutationInputs {
  Routed routed;
  int64_t rows;
  Array x, y, dout, weights;

  explicit PermutationInputs(const PermutationCase& c)
      : routed(c),
        rows(static_cast<int64_t>(routed.source.size()) + c.padding * c.experts),
        x(c.dtype, c.tokens * c.stride(), c.shift),
        y(c.dtype, rows * c.stride(), c.shift),
        dout(c.dtype, c.tokens * c.stride(), c.shift),
        weights(testing::wide_of(c.dtype), c.tokens * c.k) {
    routed.pad(c);
    std::mt19937 generator(static_cast<unsigned>(c.columns));
    for (Array* array : {&x, &y, &dout, &weights}) array->draw(generator, 0, 1);
  }
};

// {x by source, y by slots weighed, and not weighed, dy, dweights}
std::vector<Array> run(const PermutationCase& c, PermutationInputs& in) {
  const auto element_bytes = static_cast<int64_t>(testing::bytes_of(c.dtype));
  Array permuted(c.dtype, in.rows * c.columns, c.shift), weighed(c.dtype, c.tokens * c.columns, c.shift);
  Array plain(c.dtype, c.tokens * c.columns, c.shift), dy(c.dtype, in.rows * c.columns, c.shift);
  Array dweights(testing::wide_of(c.dtype), c.tokens * c.k);
  gpu::permute_tokens({.rows = in.rows,
                       .row_bytes = c.columns * element_bytes,
                       .element_bytes = element_bytes,
                       .x = in.x.data(),
                       .x_stride_bytes = c.stride() * element_bytes,
                       .source = in.routed.source.data(),
                       .y = permuted.data()},
                      nullptr);
  CombineTokens combine{.dtype = c.dtype,
                        .tokens = c.tokens,
                        .k = c.k,
                        .columns = c.columns,
                        .y = in.y.data(),
                        .y_stride = c.stride(),
                        .slots = in.routed.slots.data(),
                        .weights = in.weights.data(),
                        .out = weighed.data()};
  gpu::combine_tokens(combine, nullptr);
  combine.weights = nullptr;
  combine.out = plain.data();
  gpu::combine_tokens(combine, nullptr);
  gpu::combine_tokens_backward({.dtype = c.dtype,
                                .tokens = c.tokens,
                                .k = c.k,
                                .columns = c.columns,
                                .rows = in.rows,
                                .dout = in.dout.data(),
                                .dout_stride = c.stride(),
                                .y = in.y.data(),
                                .y_stride = c.stride(),
                                .source = in.routed.source.data(),
                                .slots = in.routed.slots.data(),
                                .weights = in.weights.data(),
                                .dy = dy.data(),
                                .dweights = dweights.data()},
                               nullptr);
  std::vector<Array> results;
  for (Array* array : {&permuted, &weighed, &plain, &dy, &dweights}) results.push_back(std::move(*array));
  return results;
}

void check(const PermutationCase& c, const PermutationInputs& in, const std::vector<Array>& results) {
  const double wide = c.dtype == Dtype::kFloat64 ? 0x1p-49 : 0x1p-20;  // at most 8 products, or `columns` of them
  const double unit = testing::unit_of(c.dtype), step = testing::smallest_step_of(c.dtype);
  const auto element = [&](const Array& array, int64_t row, int64_t i) { return array[row * c.stride() + i]; };
  std::vector<Expected> permuted, weighed, plain, dweights;
  std::vector<Expected> dy(static_cast<size_t>(in.rows * c.columns));
  for (const int64_t token : in.routed.source) {
    for (int64_t i = 0; i < c.columns; ++i) permuted.push_back({token < 0 ? 0 : element(in.x, token, i), 0});
  }
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t i = 0; i < c.columns; ++i) {
      double weighed_sum = 0, plain_sum = 0, magnitude = 0;
      for (int64_t pair = token * c.k; pair < (token + 1) * c.k; ++pair) {
        const int64_t slot = in.routed.slots[static_cast<size_t>(pair)];
        if (slot < 0) continue;
        weighed_sum += in.weights[pair] * element(in.y, slot, i);
        plain_sum += element(in.y, slot, i);
        magnitude += (1 + std::abs(in.weights[pair])) * std::abs(element(in.y, slot, i));
        const double gradient = in.weights[pair] * element(in.dout, token, i);
        // The product is rounded to the wide dtype, and then to c.dtype.
        dy[static_cast<size_t>(slot * c.columns + i)] = {gradient, (unit + wide) * std::abs(gradient) + step};
      }
      weighed.push_back({weighed_sum, unit * std::abs(weighed_sum) + wide * magnitude + step});
      plain.push_back({plain_sum, unit * std::abs(plain_sum) + wide * magnitude + step});
    }
    for (int64_t pair = token * c.k; pair < (token + 1) * c.k; ++pair) {
      const int64_t slot = in.routed.slots[static_cast<size_t>(pair)];
      double dot = 0, magnitude = 0;
      for (int64_t i = 0; slot >= 0 && i < c.columns; ++i) {
        dot += element(in.dout, token, i) * element(in.y, slot, i);
        magnitude += std::abs(element(in.dout, token, i) * element(in.y, slot, i));
      }
      dweights.push_back({dot, wide * magnitude});
    }
  }
  testing::expect_near(results[0], permuted, "permuted");
  testing::expect_near(results[1], weighed, "weighed");
  testing::expect_near(results[2], plain, "plain");
  testing::expect_near(results[3], dy, "dy");
  testing::expect_near(results[4], dweights, "dweights");
}

void try_case(const PermutationCase& c) {
  PermutationInputs in(c);
  testing::in_every_order(
      c.what(), [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
}

void try_cases(const std::vector<PermutationCase>& cases) {
  for (PermutationCase c : cases) {
    for (const Dtype dtype : testing::dtypes()) {
      c.dtype = dtype;
      try_case(c);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TokenPermutationKernels, RowsEqualLoopsInDoubleInEveryOrder) {
  // One element; rows of less than a vector, several of which are a block's; odd; one vector more than a wave has
  // lanes; more vectors than a block has threads. Some pairs dropped, some rows padding.
  std::vector<PermutationCase> cases{
      {.tokens = 9, .k = 2, .experts = 3, .columns = 67, .drops = true, .padding = 2},
      {.tokens = 7, .k = 3, .experts = 4, .columns = 264, .drops = true, .padding = 1, .row_space = 8}};
  if (testing::is_thorough()) {
    cases.insert(cases.end(), {{.tokens = 1, .k = 1, .experts = 1, .columns = 1},
                               {.tokens = 0, .k = 2, .experts = 3, .columns = 8, .padding = 2},
                               {.tokens = 70, .k = 8, .experts = 16, .columns = 16, .drops = true},
                               {.tokens = 30, .k = 2, .experts = 5, .columns = 40, .padding = 20},
                               {.tokens = 3, .k = 2, .experts = 2, .columns = 2312},
                               {.tokens = 5, .k = 2, .experts = 4, .columns = 24, .row_space = 3}});
  }
  try_cases(cases);
}

TEST(TokenPermutationKernels, TakeRowsThatAreNotAligned) {
  try_cases({{.tokens = 6, .k = 2, .experts = 3, .columns = 16, .drops = true, .padding = 1, .shift = 1}});
}

}  // namespace
}  // namespace megalith::ops

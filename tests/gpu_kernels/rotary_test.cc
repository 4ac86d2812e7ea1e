// rotary's GPU kernel under emulation: against a loop in double, equal to the bit in every order.
#include <bit>

#include "gpu_kernels/expect.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

// Memory layout of (b, s, n, d).
enum class HeadLayout { kContiguous, kSliceOfTokens, kHeadsFirst };

struct RotaryCase {
  int64_t b, s, n, d, r;
  Dtype dtype = Dtype::kBFloat16;
  bool is_interleaved = false, turns_back = false, shares_angles = true;
  HeadLayout from = HeadLayout::kContiguous, to = HeadLayout::kContiguous;
  int64_t shift = 0;  // of x and y, in elements

  std::string what() const {
    std::string text = "b, s, n, d, r";
    for (const int64_t size : {b, s, n, d, r}) text += " " + std::to_string(size);
    return text + " " + testing::name_of(dtype) + (is_interleaved ? " interleaved" : "") + (turns_back ? " back" : "") +
           " layouts " + std::to_string(static_cast<int>(from)) + " " + std::to_string(static_cast<int>(to));
  }
};

constexpr int64_t kHeadsBeside = 3;  // of a slice's tokens: heads before and after it

struct RotaryPlaces {
  HeadStrides strides;
  int64_t first = 0, count = 0;  // its offset in its array, and the elements of that
};
RotaryPlaces places_of(HeadLayout layout, const RotaryCase& c) {
  const int64_t size = c.b * c.s * c.n * c.d, token = (c.n + 2 * kHeadsBeside) * c.d;
  if (layout == HeadLayout::kHeadsFirst) return {{c.n * c.s * c.d, c.d, c.s * c.d}, 0, size};
  if (layout == HeadLayout::kContiguous) return {{c.s * c.n * c.d, c.n * c.d, c.d}, 0, size};
  return {{c.s * token, token, c.d}, kHeadsBeside * c.d, c.b * c.s * token};
}

double rounded_to(Dtype dtype, double value) {
  if (dtype == Dtype::kFloat16) return static_cast<_Float16>(value);
  if (dtype != Dtype::kBFloat16) return value;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);  // to nearest, ties to even
}

void check_rotary(const RotaryCase& c, const Array& x, const Array& cos, const Array& sin, const Array& y) {
  const RotaryPlaces in = places_of(c.from, c), out = places_of(c.to, c);
  const int64_t half = c.r / 2;
  std::vector<Expected> found_at(static_cast<size_t>(out.count), Expected{.value = 0, .bound = -1});
  for (int64_t place = 0; place < c.b * c.s * c.n; ++place) {
    const int64_t b = place / (c.s * c.n), s = place / c.n % c.s, head = place % c.n;
    const int64_t from = in.first + b * in.strides.batch + s * in.strides.sequence + head * in.strides.head;
    const int64_t to = out.first + b * out.strides.batch + s * out.strides.sequence + head * out.strides.head;
    // One rounding, after arithmetic on numbers of order 10.
    const double wide = c.dtype == Dtype::kFloat64 ? 1e-14 : 4e-6;
    const auto expect = [&](int64_t channel, double value) {
      found_at[static_cast<size_t>(to + channel)] = {
          value, testing::unit_of(c.dtype) * std::abs(value) + wide + testing::smallest_step_of(c.dtype)};
    };
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = c.is_interleaved ? 2 * i : i, second = c.is_interleaved ? 2 * i + 1 : half + i;
      const int64_t angle = ((c.shares_angles ? 0 : b) * c.s + s) * half + i;
      const double cosine = rounded_to(c.dtype, cos[angle]);
      const double sine = rounded_to(c.dtype, sin[angle]) * (c.turns_back ? -1 : 1);
      expect(first, x[from + first] * cosine - x[from + second] * sine);
      expect(second, x[from + second] * cosine + x[from + first] * sine);
    }
    for (int64_t i = c.r; i < c.d; ++i) found_at[static_cast<size_t>(to + i)] = {x[from + i], 0};
  }
  for (int64_t i = 0; i < out.count; ++i) {
    const auto [value, bound] = found_at[static_cast<size_t>(i)];
    if (bound < 0) {
      ASSERT_TRUE(std::isnan(y[i])) << "y[" << i << "], which is not a part of the result, is written";
    } else {
      ASSERT_TRUE(std::abs(y[i] - value) <= bound) << "y[" << i << "] is " << y[i] << " instead of " << value;
    }
  }
}

void try_rotary(const RotaryCase& c) {
  const RotaryPlaces in = places_of(c.from, c), out = places_of(c.to, c);
  const int64_t angles = (c.shares_angles ? 1 : c.b) * c.s * c.r / 2;
  Array x(c.dtype, in.count, c.shift);
  Array cos(testing::wide_of(c.dtype), angles), sin(testing::wide_of(c.dtype), angles);
  std::mt19937 generator(static_cast<unsigned>(c.s * 1000 + c.d));
  x.draw(generator, 0, 3);
  std::uniform_real_distribution<double> distribution(0, 2 * M_PI);
  for (int64_t i = 0; i < angles; ++i) {
    const double angle = distribution(generator);
    cos.set(i, std::cos(angle));
    sin.set(i, std::sin(angle));
  }
  const auto at_first = [&](auto* array, int64_t first) {
    return static_cast<char*>(const_cast<void*>(array->data())) +
           first * static_cast<int64_t>(testing::bytes_of(c.dtype));
  };
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(c.dtype, out.count, c.shift);
    gpu::rotary({.dtype = c.dtype,
                 .batch = c.b,
                 .sequence = c.s,
                 .heads = c.n,
                 .channels = c.d,
                 .half = c.r / 2,
                 .x = at_first(&x, in.first),
                 .x_strides = in.strides,
                 .cos = cos.data(),
                 .sin = sin.data(),
                 .angle_batch_stride = c.shares_angles ? 0 : c.s * c.r / 2,
                 .is_interleaved = c.is_interleaved,
                 .turns_back = c.turns_back,
                 .y = at_first(&results[0], out.first),
                 .y_strides = out.strides},
                nullptr);
    return results;
  };
  testing::in_every_order(c.what(), run,
                          [&](const std::vector<Array>& results) { check_rotary(c, x, cos, sin, results[0]); });
}

TEST(RotaryKernels, EqualALoopInDoubleInEveryOrder) {
  // One pair; primes and a run of heads that is not full; a part of the channels; whole vectors; these and channels
  // that pass; nothing turns; nothing at all.
  using Cases = std::vector<RotaryCase>;
  const Cases cases = testing::is_thorough()
                          ? Cases{{1, 1, 1, 2, 2},   {2, 3, 5, 14, 14}, {1, 4, 2, 10, 6}, {2, 5, 6, 128, 128},
                                  {1, 7, 2, 96, 32}, {1, 3, 2, 8, 0},   {0, 3, 2, 8, 8}}
                          : Cases{{2, 3, 5, 14, 14}, {2, 3, 5, 64, 32}};
  for (RotaryCase c : cases) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const bool is_interleaved : {false, true}) {
        for (const bool turns_back : {false, true}) {
          c.dtype = dtype;
          c.is_interleaved = is_interleaved;
          c.shares_angles = c.turns_back = turns_back;
          try_rotary(c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(RotaryKernels, ReadAndWriteSlicesOfLargerTensors) {
  for (const Dtype dtype : testing::dtypes()) {
    for (const HeadLayout layout : {HeadLayout::kSliceOfTokens, HeadLayout::kHeadsFirst}) {
      for (const int64_t d : {16, 10}) {
        RotaryCase c{.b = 2, .s = 3, .n = 5, .d = d, .r = d, .dtype = dtype, .from = layout, .to = layout};
        try_rotary(c);
        if (HasFatalFailure()) return;
        c.to = HeadLayout::kContiguous;
        try_rotary(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(RotaryKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    try_rotary({.b = 1, .s = 3, .n = 2, .d = 32, .r = 16, .dtype = dtype, .shift = 1});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::ops

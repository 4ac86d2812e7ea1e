// NumPy's generators, bit for bit: Megatron's sample order depends on them.
//
//   RandomState(seed)       the legacy Mersenne Twister: shuffles of document and sample indices
//   default_rng(0)          PCG64: the document lengths of mock data
//
// Source: numpy/random/mtrand (MT19937, masked rejection), numpy/random/_pcg64 (SeedSequence, XSL-RR, Lemire).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace megalith {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(uint32_t seed);

  uint32_t next_u32() {
    if (position_ == kSize) refill();
    return drawn_[position_++];
  }
  // Uniform in 0 … max, by masked rejection: 32-bit draws while max fits them, else 64-bit.
  uint64_t interval(uint64_t max) {
    if (max == 0) return 0;
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
    uint64_t value;
    do {
      if (max <= UINT32_MAX) {
        value = next_u32() & mask;
      } else {
        const uint64_t high = next_u32();
        value = (high << 32 | next_u32()) & mask;
      }
    } while (value > max);
    return value;
  }

  // random_sample(): uniform in [0, 1), 53 bits.
  double random() {
    constexpr double kTwo26 = 67108864, kTwo53 = 9007199254740992;
    const uint32_t high = next_u32() >> 5, low = next_u32() >> 6;
    return (high * kTwo26 + low) / kTwo53;
  }
  // randint(low, high): low … high - 1.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(interval(static_cast<uint64_t>(high - 1 - low)));
  }
  // geometric(p) by inversion, NumPy's method for p below 1/3.
  int64_t geometric(double p);

  // RandomState.shuffle of a one-dimensional array.
  template <typename T>
  void shuffle(std::span<T> values) {
    size_t left = values.size();
    for (; left > (size_t{1} << 32); --left) std::swap(values[left - 1], values[interval(left - 1)]);
    // Places do not depend on values, so they are drawn ahead and prefetched.
    std::array<uint32_t, kBlock> places;
    while (left > 1) {
      const size_t count = std::min(kBlock, left - 1);
      draw_places(left - 1, std::span(places).first(count));
      for (size_t i = 0; i < count; ++i) __builtin_prefetch(&values[places[i]], 1);
      for (size_t i = 0; i < count; ++i) std::swap(values[left - 1 - i], values[places[i]]);
      left -= count;
    }
  }

 private:
  void refill();
  // places[i] = interval(max - i), for max below 2^32 and at most `max` places.
  void draw_places(uint64_t max, std::span<uint32_t> places);

  static constexpr size_t kSize = 624, kBlock = 256;
  std::array<uint32_t, kSize> state_, drawn_{};  // drawn_: this round's words, tempered
  size_t position_ = kSize;
};

class NumpyDefaultRng {
 public:
  explicit NumpyDefaultRng(uint64_t seed);

  uint64_t next_u64();
  uint32_t next_u32();  // the low, then the high half of a 64-bit draw
  // integers(low, high) of a range below 2^32: low … high - 1, by Lemire's method.
  int64_t integer(int64_t low, int64_t high);

 private:
  __extension__ using Word128 = unsigned __int128;
  void step();

  Word128 state_ = 0, increment_ = 0;
  uint32_t spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace megalith

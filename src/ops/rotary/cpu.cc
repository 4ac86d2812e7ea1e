// A few channels' angles are loaded and rounded once for all of a token's heads.
#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/cpu/lanes.h"
#include "ops/rotary/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

template <typename T>
struct Pair {
  Lanes<T> first, second;
};

template <typename T>
Pair<T> turned(const Pair<T>& p, const Lanes<T>& c, const Lanes<T>& s) {
  return {p.first * c - p.second * s, p.second * c + p.first * s};
}

template <typename T, typename Count>
Pair<T> load_pairs(const T* p, Count count) {
  if constexpr (std::is_same_v<Count, FullCount<T>>) {
    const auto [first, second] = at::vec::deinterleave2(load(p, count), load(p + kLanes<T>, count));
    return {first, second};
  } else {
    T values[2 * kLanes<T>] = {};
    std::copy(p, p + 2 * count, values);
    return load_pairs(values, FullCount<T>{});
  }
}

template <typename T, typename Count>
void store_pairs(T* p, const Pair<T>& pair, Count count) {
  if constexpr (std::is_same_v<Count, FullCount<T>>) {
    const auto [low, high] = at::vec::interleave2(pair.first, pair.second);
    store(p, low, count);
    store(p + kLanes<T>, high, count);
  } else {
    T values[2 * kLanes<T>];
    store_pairs(values, pair, FullCount<T>{});
    std::copy(values, values + 2 * count, p);
  }
}

template <typename T, bool kInterleaved>
void turn_token(const RotaryTurn& a, const T* x, const Wide<T>* cos, const Wide<T>* sin, T* y) {
  for_each_lanes<T>(a.half, [&](int64_t i, auto count) {
    const Lanes<T> c = rounded<T>(load(cos + i, count));
    Lanes<T> s = rounded<T>(load(sin + i, count));
    if (a.turns_back) s = s.neg();
    for (int64_t head = 0; head < a.heads; ++head) {
      const T* from = x + head * a.x_strides.head;
      T* to = y + head * a.y_strides.head;
      if constexpr (kInterleaved) {
        store_pairs(to + 2 * i, turned<T>(load_pairs(from + 2 * i, count), c, s), count);
      } else {
        const Pair<T> pair = turned<T>({load(from + i, count), load(from + a.half + i, count)}, c, s);
        store(to + i, pair.first, count);
        store(to + a.half + i, pair.second, count);
      }
    }
  });
  if (2 * a.half < a.channels) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const T* from = x + head * a.x_strides.head;
      std::copy(from + 2 * a.half, from + a.channels, y + head * a.y_strides.head + 2 * a.half);
    }
  }
}

template <typename T>
void turn(const RotaryTurn& a) {
  using W = Wide<T>;
  const int64_t token_size = a.heads * a.channels;
  at::parallel_for(0, a.batch * a.sequence, 1 + 16384 / (token_size + 1), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t b = token / a.sequence, position = token % a.sequence;
      const T* x = static_cast<const T*>(a.x) + b * a.x_strides.batch + position * a.x_strides.sequence;
      const int64_t angle = b * a.angle_batch_stride + position * a.half;
      const W* cos = static_cast<const W*>(a.cos) + angle;
      const W* sin = static_cast<const W*>(a.sin) + angle;
      T* y = static_cast<T*>(a.y) + b * a.y_strides.batch + position * a.y_strides.sequence;
      a.is_interleaved ? turn_token<T, true>(a, x, cos, sin, y) : turn_token<T, false>(a, x, cos, sin, y);
    }
  });
}

}  // namespace

void rotary(const RotaryTurn& a) {
  with_type(a.dtype, [&](auto zero) { turn<decltype(zero)>(a); });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

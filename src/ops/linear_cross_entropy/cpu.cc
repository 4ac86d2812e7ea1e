// A row of logits (64 KB for 32,000 in bf16) stays in L2 between passes.
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "ops/cpu/lanes.h"
#include "ops/linear_cross_entropy/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

template <typename T>
constexpr Wide<T> kInfinity = std::numeric_limits<Wide<T>>::infinity();

// exp_u20's error of up to 20 ulp vanishes in 16 bits.
template <typename T>
Lanes<T> exp_of(const Lanes<T>& x) {
  if constexpr (sizeof(T) == 2)
    return x.exp_u20();
  else
    return x.exp();
}

template <typename T, typename Count>
Lanes<T> load_logits(const T* p, Count count) {
  const Lanes<T> x = load(p, count);
  if constexpr (std::is_same_v<Count, FullCount<T>>)
    return x;
  else
    return Lanes<T>::set(Lanes<T>(-kInfinity<T>), x, count);
}

template <typename T>
Wide<T> maximum_of(const T* logits, int64_t count) {
  Lanes<T> maxima(-kInfinity<T>);
  for_each_lanes<T>(count, [&](int64_t i, auto n) { maxima = at::vec::maximum(maxima, load_logits(logits + i, n)); });
  return max_of(maxima);
}

template <typename T>
Wide<T> sum_exp_of(const T* logits, int64_t count, Wide<T> highest) {
  // exp(-inf - 0) = 0, but exp(-inf + inf) is NaN.
  const Lanes<T> shift(highest == -kInfinity<T> ? Wide<T>(0) : highest);
  Lanes<T> sums(0);
  for_each_lanes<T>(count, [&](int64_t i, auto n) { sums = sums + exp_of<T>(load_logits(logits + i, n) - shift); });
  return sum_of(sums);
}

// logits <- scale * (exp(logits - lse) - onehot(target)), 0 from `valid` on; target < 0: none.
template <typename T>
void write_gradient(T* logits, int64_t columns, int64_t valid, int64_t target, Wide<T> lse, Wide<T> scale) {
  if (scale == 0) {
    // Even if its logits are not finite.
    std::fill(logits, logits + columns, T(0));
    return;
  }
  const Wide<T> at_target = target >= 0 ? static_cast<Wide<T>>(logits[target]) : Wide<T>(0);
  const Lanes<T> shift(lse), factor(scale);
  for_each_lanes<T>(valid,
                    [&](int64_t i, auto n) { store(logits + i, exp_of<T>(load(logits + i, n) - shift) * factor, n); });
  std::fill(logits + valid, logits + columns, T(0));
  // expm1 keeps a probability's digits near 1.
  if (target >= 0) logits[target] = static_cast<T>(scale * std::expm1(at_target - lse));
}

int64_t target_of(const LogitRows& a, int64_t row) {
  const int64_t column = a.labels[row] - a.vocab_start;
  return column >= 0 && column < a.valid ? column : -1;
}

template <typename T, typename Body>
void for_each_row(const LogitRows& a, Body&& body) {
  at::parallel_for(0, a.rows, 1 + 16384 / (a.columns + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row, static_cast<T*>(a.logits) + row * a.stride, target_of(a, row));
    }
  });
}

}  // namespace

void softmax_statistics(const LogitRows& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row<T>(a, [&](int64_t row, const T* logits, int64_t target) {
      const Wide<T> highest = maximum_of(logits, a.valid);
      static_cast<Wide<T>*>(a.row_max)[row] = highest;
      static_cast<Wide<T>*>(a.sum_exp)[row] = sum_exp_of(logits, a.valid, highest);
      static_cast<Wide<T>*>(a.target_logit)[row] = target >= 0 ? static_cast<Wide<T>>(logits[target]) : Wide<T>(0);
    });
  });
}

void cross_entropy_gradient(const LogitRows& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row<T>(a, [&](int64_t row, T* logits, int64_t target) {
      write_gradient(logits, a.columns, a.valid, target, static_cast<const Wide<T>*>(a.lse)[row],
                     static_cast<const Wide<T>*>(a.row_scale)[row]);
    });
  });
}

void cross_entropy(const LogitRows& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row<T>(a, [&](int64_t row, T* logits, int64_t target) {
      const Wide<T> scale = static_cast<const Wide<T>*>(a.row_scale)[row];
      Wide<T> lse(0), loss(0);
      if (scale != 0) {
        const Wide<T> highest = maximum_of(logits, a.valid);
        lse = highest + std::log(sum_exp_of(logits, a.valid, highest));
        loss = lse - (target >= 0 ? static_cast<Wide<T>>(logits[target]) : Wide<T>(0));
      }
      static_cast<Wide<T>*>(a.losses)[row] = loss;
      if (a.with_grad) write_gradient(logits, a.columns, a.valid, target, lse, scale);
    });
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

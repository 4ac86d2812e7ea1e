// Reads a row once for the mean, then twice from the cache, for variance and result.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/lanes.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t layer_norm_rows_per_task(int64_t columns) { return 1 + 16384 / (columns + 1); }

template <typename W>
struct Statistics {
  W mean, inv_std;
};

// `sum` has a long addition's rounding errors: the small deviations' sum corrects the mean, and their squares lose
// nothing to a large one.
template <typename T>
Statistics<Wide<T>> statistics_of(const T* row, int64_t columns, Wide<T> sum, double eps) {
  using W = Wide<T>;
  const W count = static_cast<W>(columns), near_mean = sum / count;
  const Lanes<T> center(near_mean);
  Lanes<T> deviations(0), squares(0);
  for_each_lanes<T>(columns, [&](int64_t i, auto size) {
    Lanes<T> deviation = load(row + i, size) - center;
    // Unused lanes hold 0, whose deviation must not count.
    if constexpr (!std::is_same_v<decltype(size), FullCount<T>>) {
      deviation = Lanes<T>::set(Lanes<T>(0), deviation, size);
    }
    deviations = deviations + deviation;
    squares = at::vec::fmadd(deviation, deviation, squares);
  });
  const W correction = sum_of(deviations) / count;
  const W variance = std::max(W(0), sum_of(squares) / count - correction * correction);
  return {near_mean + correction, W(1) / std::sqrt(variance + static_cast<W>(eps))};
}

template <typename T, bool kAdds>
void forward(const LayerNormForward& a) {
  using W = Wide<T>;
  const int64_t columns = a.columns;
  const auto* weight = static_cast<const T*>(a.weight);
  const auto* bias = static_cast<const T*>(a.bias);
  const Lanes<T> weight_offset(static_cast<W>(a.weight_offset));
  at::parallel_for(0, a.rows, layer_norm_rows_per_task(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * columns;
      const T* normed = x;
      Lanes<T> total(0);
      if constexpr (kAdds) {
        const T* residual = static_cast<const T*>(a.residual) + row * columns;
        T* sum = static_cast<T*>(a.sum) + row * columns;
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          // Rounded, as backward will see it.
          const Lanes<T> value = rounded<T>(load(x + i, count) + load(residual + i, count));
          store(sum + i, value, count);
          total = total + value;
        });
        normed = sum;
      } else {
        for_each_lanes<T>(columns, [&](int64_t i, auto count) { total = total + load(x + i, count); });
      }
      const auto [mean, inv_std] = statistics_of(normed, columns, sum_of(total), a.eps);
      static_cast<W*>(a.mean)[row] = mean;
      static_cast<W*>(a.inv_std)[row] = inv_std;
      const Lanes<T> center(mean), scale(inv_std);
      T* y = static_cast<T*>(a.y) + row * columns;
      for_each_lanes<T>(columns, [&](int64_t i, auto count) {
        const Lanes<T> n = (load(normed + i, count) - center) * scale;
        store(y + i, at::vec::fmadd(n, load(weight + i, count) + weight_offset, load(bias + i, count)), count);
      });
    }
  });
}

// n = (x - mean) * inv_std,  g = dy * weight:
//   dx = inv_std * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,  dbias = sum over rows of dy.
template <typename T, bool kAdds>
void backward(const LayerNormBackward& a) {
  using W = Wide<T>;
  const int64_t rows = a.rows, columns = a.columns;
  const int64_t blocks = a.blocks;
  const auto* weight = static_cast<const T*>(a.weight);
  const Lanes<T> weight_offset(static_cast<W>(a.weight_offset));
  auto* const scratch = static_cast<W*>(a.scratch);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      W* dweight = scratch + block * 2 * columns;
      W* dbias = dweight + columns;
      std::fill(dweight, dweight + 2 * columns, W(0));
      const int64_t last = (block + 1) * rows / blocks;
      for (int64_t row = block * rows / blocks; row < last; ++row) {
        const T* dy = static_cast<const T*>(a.dy) + row * columns;
        const T* x = static_cast<const T*>(a.x) + row * columns;
        T* dx = static_cast<T*>(a.dx) + row * columns;
        const W inv_std = static_cast<const W*>(a.inv_std)[row];
        const Lanes<T> center(static_cast<const W*>(a.mean)[row]), scale(inv_std);
        Lanes<T> sums(0), dots(0);
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          // 0 in unused lanes, like dy.
          const Lanes<T> g = load(dy + i, count) * (load(weight + i, count) + weight_offset);
          sums = sums + g;
          dots = at::vec::fmadd(g, load(x + i, count) - center, dots);
        });
        const Lanes<T> mean_g(sum_of(sums) / static_cast<W>(columns));
        const Lanes<T> mean_gn(sum_of(dots) * inv_std / static_cast<W>(columns));
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          const Lanes<T> grad = load(dy + i, count), n = (load(x + i, count) - center) * scale;
          const Lanes<T> g = grad * (load(weight + i, count) + weight_offset);
          Lanes<T> result = (g - mean_g - n * mean_gn) * scale;
          if constexpr (kAdds) result = result + load(static_cast<const T*>(a.dsum) + row * columns + i, count);
          store(dx + i, result, count);
          store(dweight + i, at::vec::fmadd(grad, n, load(dweight + i, count)), count);
          store(dbias + i, grad + load(dbias + i, count), count);
        });
      }
    }
  });
  at::parallel_for(0, columns, 512, [&](int64_t begin, int64_t end) {
    W* dweight = static_cast<W*>(a.dweight);
    W* dbias = static_cast<W*>(a.dbias);
    std::fill(dweight + begin, dweight + end, W(0));
    std::fill(dbias + begin, dbias + end, W(0));
    for (int64_t block = 0; block < blocks; ++block) {
      const W* part = scratch + block * 2 * columns;
      for (int64_t i = begin; i < end; ++i) dweight[i] += part[i];
      for (int64_t i = begin; i < end; ++i) dbias[i] += part[columns + i];
    }
  });
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.residual ? forward<T, true>(a) : forward<T, false>(a);
  });
}

void layer_norm_backward(const LayerNormBackward& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.dsum ? backward<T, true>(a) : backward<T, false>(a);
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

// Reads a row once for the statistics, then from the cache for the result.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/lanes.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t rows_per_task(int64_t columns) { return 1 + 16384 / (columns + 1); }

template <typename T, bool kAdds>
void forward(const RmsNormForward& a) {
  using W = Wide<T>;
  const int64_t columns = a.columns;
  const auto* weight = static_cast<const T*>(a.weight);
  at::parallel_for(0, a.rows, rows_per_task(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * columns;
      const T* normed = x;
      Lanes<T> squares(0);
      if constexpr (kAdds) {
        const T* residual = static_cast<const T*>(a.residual) + row * columns;
        T* sum = static_cast<T*>(a.sum) + row * columns;
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          // Rounded, as backward will see it.
          const Lanes<T> value = rounded<T>(load(x + i, count) + load(residual + i, count));
          store(sum + i, value, count);
          squares = at::vec::fmadd(value, value, squares);
        });
        normed = sum;
      } else {
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          const Lanes<T> value = load(x + i, count);
          squares = at::vec::fmadd(value, value, squares);
        });
      }
      const W inv_rms = W(1) / std::sqrt(sum_of(squares) / static_cast<W>(columns) + static_cast<W>(a.eps));
      static_cast<W*>(a.inv_rms)[row] = inv_rms;
      T* y = static_cast<T*>(a.y) + row * columns;
      for_each_lanes<T>(columns, [&](int64_t i, auto count) {
        const Lanes<T> n = rounded<T>(load(normed + i, count) * Lanes<T>(inv_rms));
        store(y + i, n * load(weight + i, count), count);
      });
    }
  });
}

// n = x * inv_rms,  g = dy * weight:  dx = inv_rms * (g - n * mean(g * n)),  dweight = sum over rows of dy * n.
template <typename T, bool kAdds>
void backward(const RmsNormBackward& a) {
  using W = Wide<T>;
  const int64_t rows = a.rows, columns = a.columns;
  const int64_t blocks = a.blocks;
  const auto* weight = static_cast<const T*>(a.weight);
  auto* const scratch = static_cast<W*>(a.scratch);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      W* dweight = scratch + block * columns;
      std::fill(dweight, dweight + columns, W(0));
      const int64_t last = (block + 1) * rows / blocks;
      for (int64_t row = block * rows / blocks; row < last; ++row) {
        const T* dy = static_cast<const T*>(a.dy) + row * columns;
        const T* x = static_cast<const T*>(a.x) + row * columns;
        T* dx = static_cast<T*>(a.dx) + row * columns;
        const W inv_rms = static_cast<const W*>(a.inv_rms)[row];
        Lanes<T> dots(0);
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          dots = at::vec::fmadd(load(dy + i, count) * load(weight + i, count), load(x + i, count), dots);
        });
        const Lanes<T> scale(inv_rms);
        const Lanes<T> mean(sum_of(dots) * inv_rms / static_cast<W>(columns));
        for_each_lanes<T>(columns, [&](int64_t i, auto count) {
          const Lanes<T> grad = load(dy + i, count), n = load(x + i, count) * scale;
          Lanes<T> result = (grad * load(weight + i, count) - n * mean) * scale;
          if constexpr (kAdds) result = result + load(static_cast<const T*>(a.dsum) + row * columns + i, count);
          store(dx + i, result, count);
          // forward multiplied the rounded n
          store(dweight + i, at::vec::fmadd(grad, rounded<T>(n), load(dweight + i, count)), count);
        });
      }
    }
  });
  at::parallel_for(0, columns, 512, [&](int64_t begin, int64_t end) {
    W* dweight = static_cast<W*>(a.dweight);
    std::fill(dweight + begin, dweight + end, W(0));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = begin; i < end; ++i) dweight[i] += scratch[block * columns + i];
    }
  });
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.residual ? forward<T, true>(a) : forward<T, false>(a);
  });
}

void rms_norm_backward(const RmsNormBackward& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    a.dsum ? backward<T, true>(a) : backward<T, false>(a);
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

// RMS normalisation on a GPU: a block of threads for each row; the weight's gradient by columns, over blocks of rows
// that are added in order, so that it repeats to the bit.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void forward(int64_t columns, const T* x, const T* residual, const T* weight, double eps, T* y, T* sum,
                        Wide<T>* inv_rms) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, start = row * columns;
  W squares = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    W value = widen(x[start + i]);
    if (residual != nullptr) {
      // The norm is that of the rounded sum, which is what backward will see.
      const T added = Rounding<T>::of(value + widen(residual[start + i]));
      sum[start + i] = added;
      value = widen(added);
    }
    squares += value * value;
  }
  const W scale = W(1) / sqrt(sum_over_block(squares) / static_cast<W>(columns) + static_cast<W>(eps));
  if (threadIdx.x == 0) inv_rms[row] = scale;
  const T* normed = residual != nullptr ? sum : x;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    y[start + i] = Rounding<T>::of(rounded<T>(widen(normed[start + i]) * scale) * widen(weight[i]));
  }
}

// With n = x * inv_rms and g = dy * weight:  dx = inv_rms * (g - n * mean(g * n)).
template <typename T>
__global__ void backward_input(int64_t columns, const T* dy, const T* dsum, const T* x, const T* weight,
                               const Wide<T>* inv_rms, T* dx) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, start = row * columns;
  const W scale = inv_rms[row];
  W dot = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    dot += widen(dy[start + i]) * widen(weight[i]) * widen(x[start + i]);
  }
  const W mean = sum_over_block(dot) * scale / static_cast<W>(columns);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    W result = (widen(dy[start + i]) * widen(weight[i]) - widen(x[start + i]) * scale * mean) * scale;
    if (dsum != nullptr) result += widen(dsum[start + i]);
    dx[start + i] = Rounding<T>::of(result);
  }
}

// scratch[block] = sum over the block's rows of dy * round(n); a thread for each column.
template <typename T>
__global__ void backward_weight(int64_t rows, int64_t columns, const T* dy, const T* x, const Wide<T>* inv_rms,
                                Wide<T>* scratch) {
  using W = Wide<T>;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t block = blockIdx.y, blocks = gridDim.y, last = (block + 1) * rows / blocks;
  W sum = 0;
  for (int64_t row = block * rows / blocks; row < last; ++row) {
    const int64_t i = row * columns + column;
    sum += widen(dy[i]) * rounded<T>(widen(x[i]) * inv_rms[row]);
  }
  scratch[block * columns + column] = sum;
}

template <typename W>
__global__ void add_blocks(int64_t blocks, int64_t columns, const W* scratch, W* dweight) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  W sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += scratch[block * columns + column];
  dweight[column] = sum;
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a, void* stream) {
  if (a.rows == 0) return;  // a launch of no blocks is refused
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch("rms_norm_forward", forward<T>, static_cast<unsigned>(a.rows), kThreads, 0, static_cast<Stream>(stream),
           a.columns, static_cast<const T*>(a.x), static_cast<const T*>(a.residual), static_cast<const T*>(a.weight),
           a.eps, static_cast<T*>(a.y), static_cast<T*>(a.sum), static_cast<Wide<T>*>(a.inv_rms));
  });
}

void rms_norm_backward(const RmsNormBackward& a, void* stream) {
  if (a.columns == 0) return;
  const auto column_blocks = static_cast<unsigned>((a.columns + kThreads - 1) / kThreads);
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const auto* dy = static_cast<const T*>(a.dy);
    const auto* x = static_cast<const T*>(a.x);
    const auto* inv_rms = static_cast<const W*>(a.inv_rms);
    const auto queue = static_cast<Stream>(stream);
    if (a.rows > 0) {
      launch("rms_norm_backward, dx", backward_input<T>, static_cast<unsigned>(a.rows), kThreads, 0, queue, a.columns,
             dy, static_cast<const T*>(a.dsum), x, static_cast<const T*>(a.weight), inv_rms, static_cast<T*>(a.dx));
      launch("rms_norm_backward, dweight", backward_weight<T>, dim3(column_blocks, static_cast<unsigned>(a.blocks)),
             kThreads, 0, queue, a.rows, a.columns, dy, x, inv_rms, static_cast<W*>(a.scratch));
    }
    launch("rms_norm_backward, sum of dweight", add_blocks<W>, column_blocks, kThreads, 0, queue, a.blocks, a.columns,
           static_cast<const W*>(a.scratch), static_cast<W*>(a.dweight));
  });
}

}  // namespace megalith::ops::gpu

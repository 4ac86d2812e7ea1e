// Layer normalisation on a GPU: a block of threads for each row; the gradients of weight and bias by columns, over
// blocks of rows that are added in order, so that they repeat to the bit.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kLayerNormThreads = 256;

template <typename T>
__global__ void layer_norm_rows(int64_t columns, const T* x, const T* residual, const T* weight, double weight_offset,
                                const T* bias, double eps, T* y, T* sum, Wide<T>* mean, Wide<T>* inv_std) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, start = row * columns;
  const W count = static_cast<W>(columns), offset = static_cast<W>(weight_offset);
  W total = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kLayerNormThreads) {
    W value = widen(x[start + i]);
    if (residual != nullptr) {
      // The norm is that of the rounded sum, which is what backward will see.
      const T added = Rounding<T>::of(value + widen(residual[start + i]));
      sum[start + i] = added;
      value = widen(added);
    }
    total += value;
  }
  const W near_mean = sum_over_block(total) / count;
  // The deviations from it are small: their sum is what the mean lacks, their squares lose nothing to a large mean.
  const T* normed = residual != nullptr ? sum : x;
  W deviations = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kLayerNormThreads) {
    const W deviation = widen(normed[start + i]) - near_mean;
    deviations += deviation;
    squares += deviation * deviation;
  }
  const W correction = sum_over_block(deviations) / count;
  const W variance = sum_over_block(squares) / count - correction * correction;
  const W center = near_mean + correction;
  const W scale = W(1) / sqrt((variance < W(0) ? W(0) : variance) + static_cast<W>(eps));
  if (threadIdx.x == 0) {
    mean[row] = center;
    inv_std[row] = scale;
  }
  for (int64_t i = threadIdx.x; i < columns; i += kLayerNormThreads) {
    const W n = (widen(normed[start + i]) - center) * scale;
    y[start + i] = Rounding<T>::of(n * (widen(weight[i]) + offset) + widen(bias[i]));
  }
}

// With n = (x - mean) * inv_std and g = dy * weight:  dx = inv_std * (g - mean(g) - n * mean(g * n)).
template <typename T>
__global__ void layer_norm_input_grad(int64_t columns, const T* dy, const T* dsum, const T* x, const T* weight,
                                      double weight_offset, const Wide<T>* mean, const Wide<T>* inv_std, T* dx) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, start = row * columns;
  const W count = static_cast<W>(columns), offset = static_cast<W>(weight_offset);
  const W center = mean[row], scale = inv_std[row];
  W total = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kLayerNormThreads) {
    const W g = widen(dy[start + i]) * (widen(weight[i]) + offset);
    total += g;
    dot += g * (widen(x[start + i]) - center);
  }
  const W mean_g = sum_over_block(total) / count;
  const W mean_gn = sum_over_block(dot) * scale / count;
  for (int64_t i = threadIdx.x; i < columns; i += kLayerNormThreads) {
    const W g = widen(dy[start + i]) * (widen(weight[i]) + offset);
    const W n = (widen(x[start + i]) - center) * scale;
    W result = (g - mean_g - n * mean_gn) * scale;
    if (dsum != nullptr) result += widen(dsum[start + i]);
    dx[start + i] = Rounding<T>::of(result);
  }
}

// scratch[block] = sums over the block's rows of dy * n and of dy; a thread for each column.
template <typename T>
__global__ void layer_norm_column_grads(int64_t rows, int64_t columns, const T* dy, const T* x, const Wide<T>* mean,
                                        const Wide<T>* inv_std, Wide<T>* scratch) {
  using W = Wide<T>;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLayerNormThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t block = blockIdx.y, blocks = gridDim.y, last = (block + 1) * rows / blocks;
  W dweight = 0, dbias = 0;
  for (int64_t row = block * rows / blocks; row < last; ++row) {
    const int64_t i = row * columns + column;
    const W grad = widen(dy[i]);
    dweight += grad * ((widen(x[i]) - mean[row]) * inv_std[row]);
    dbias += grad;
  }
  scratch[2 * block * columns + column] = dweight;
  scratch[(2 * block + 1) * columns + column] = dbias;
}

template <typename W>
__global__ void layer_norm_add_blocks(int64_t blocks, int64_t columns, const W* scratch, W* dweight, W* dbias) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLayerNormThreads + threadIdx.x;
  if (column >= columns) return;
  W weight_sum = 0, bias_sum = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    weight_sum += scratch[2 * block * columns + column];
    bias_sum += scratch[(2 * block + 1) * columns + column];
  }
  dweight[column] = weight_sum;
  dbias[column] = bias_sum;
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, void* stream) {
  if (a.rows == 0) return;  // a launch of no blocks is refused
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    launch("layer_norm_forward", layer_norm_rows<T>, static_cast<unsigned>(a.rows), kLayerNormThreads, 0,
           static_cast<Stream>(stream), a.columns, static_cast<const T*>(a.x), static_cast<const T*>(a.residual),
           static_cast<const T*>(a.weight), a.weight_offset, static_cast<const T*>(a.bias), a.eps, static_cast<T*>(a.y),
           static_cast<T*>(a.sum), static_cast<W*>(a.mean), static_cast<W*>(a.inv_std));
  });
}

void layer_norm_backward(const LayerNormBackward& a, void* stream) {
  if (a.columns == 0) return;
  const auto column_blocks = static_cast<unsigned>((a.columns + kLayerNormThreads - 1) / kLayerNormThreads);
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const auto* dy = static_cast<const T*>(a.dy);
    const auto* x = static_cast<const T*>(a.x);
    const auto* mean = static_cast<const W*>(a.mean);
    const auto* inv_std = static_cast<const W*>(a.inv_std);
    auto* scratch = static_cast<W*>(a.scratch);
    const auto queue = static_cast<Stream>(stream);
    if (a.rows > 0) {
      launch("layer_norm_backward, dx", layer_norm_input_grad<T>, static_cast<unsigned>(a.rows), kLayerNormThreads, 0,
             queue, a.columns, dy, static_cast<const T*>(a.dsum), x, static_cast<const T*>(a.weight), a.weight_offset,
             mean, inv_std, static_cast<T*>(a.dx));
      launch("layer_norm_backward, dweight and dbias", layer_norm_column_grads<T>,
             dim3(column_blocks, static_cast<unsigned>(a.blocks)), kLayerNormThreads, 0, queue, a.rows, a.columns, dy,
             x, mean, inv_std, scratch);
    }
    launch("layer_norm_backward, sums of dweight and dbias", layer_norm_add_blocks<W>, column_blocks, kLayerNormThreads,
           0, queue, a.blocks, a.columns, scratch, static_cast<W*>(a.dweight), static_cast<W*>(a.dbias));
  });
}

}  // namespace megalith::ops::gpu

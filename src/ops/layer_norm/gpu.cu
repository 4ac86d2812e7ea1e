// Each row is read once and kept in registers; gradients of weight and bias come from dx's pass, summed over blocks of
// rows in order.
#include "ops/gpu/largest.h"
#include "ops/gpu/row.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops::gpu {
namespace {

template <typename Kind>
__global__ void __launch_bounds__(Kind::kMostThreads) layer_norm_rows(LayerNormForward a, int team_size) {
  using T = typename Kind::T;
  using W = typename Kind::W;
  const RowTeam<Kind> team(team_size);
  const int64_t row = int64_t{blockIdx.x} * team.count + team.index;
  const bool has_row = row < a.rows;
  const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;
  const W count = static_cast<W>(a.columns), offset = static_cast<W>(a.weight_offset);
  const T* residual = row_at<T>(a.residual, start);
  T* sum = row_at<T>(a.sum, start);
  KeptRow<Kind> normed(team, columns, row_at<T>(a.x, start));
  if (residual != nullptr) normed.add(team, columns, residual, sum);

  // From the rounded sum, which backward will see.
  W total[] = {0};
  team.for_each_vector(columns, [&](int slot, int64_t column) {
    const auto x = normed.get(slot, column);
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kWidth; ++i) total[0] += widen(x[i]);
  });
  team.sum(total);
  const W near_mean = total[0] / count;
  // Deviations are small: their sum corrects the mean, and their squares lose nothing to a large one.
  W moments[] = {0, 0};
  team.for_each_vector(columns, [&](int slot, int64_t column) {
    const auto x = normed.get(slot, column);
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kWidth; ++i) {
      const W deviation = widen(x[i]) - near_mean;
      moments[0] += deviation;
      moments[1] += deviation * deviation;
    }
  });
  team.sum(moments);
  const W correction = moments[0] / count, variance = moments[1] / count - correction * correction;
  const W center = near_mean + correction;
  const W scale = W(1) / sqrt((variance < W(0) ? W(0) : variance) + static_cast<W>(a.eps));
  if (has_row && team.member == 0) {
    static_cast<W*>(a.mean)[row] = center;
    static_cast<W*>(a.inv_std)[row] = scale;
  }

  const T *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
  T* y = row_at<T>(a.y, start);
  Largest<W> largest;
  team.for_each_vector(columns, [&](int slot, int64_t column) {
    const auto x = normed.get(slot, column), w = load_vector<Kind::kWidth>(weight + column);
    const auto b = load_vector<Kind::kWidth>(bias + column);
    typename Kind::Values result;
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kWidth; ++i) {
      const W n = (widen(x[i]) - center) * scale;
      result[i] = Rounding<T>::of(n * (widen(w[i]) + offset) + widen(b[i]));
      largest.take(widen(result[i]));
    }
    store_vector(y + column, result);
  });
  largest.raise(a.amax);
}

// n = (x - mean) * inv_std,  g = dy * weight:
//   dx = inv_std * (g - mean(g) - n * mean(g * n)),  dweight = sum over rows of dy * n,  dbias = sum over rows of dy.
template <typename Kind>
__global__ void __launch_bounds__(Kind::kMostThreads) layer_norm_gradients(LayerNormBackward a, int team_size) {
  using T = typename Kind::T;
  using W = typename Kind::W;
  const RowTeam<Kind> team(team_size);
  const int64_t block = blockIdx.x, last = (block + 1) * a.rows / a.blocks;
  const W count = static_cast<W>(a.columns), offset = static_cast<W>(a.weight_offset);
  const T* weight = static_cast<const T*>(a.weight);
  W* const parts = static_cast<W*>(a.scratch) + 2 * block * a.columns;
  ColumnSums<Kind> dweight(team, a.columns, parts), dbias(team, a.columns, parts + a.columns);
  for (int64_t first = block * a.rows / a.blocks; first < last; first += team.count) {
    const int64_t row = first + team.index;
    const bool has_row = row < last;
    const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;
    const KeptRow<Kind> grads(team, columns, row_at<T>(a.dy, start)), inputs(team, columns, row_at<T>(a.x, start));
    const W center = has_row ? static_cast<const W*>(a.mean)[row] : W(0);
    const W scale = has_row ? static_cast<const W*>(a.inv_std)[row] : W(0);
    W sums[] = {0, 0};  // of g and of g * (x - mean)
    team.for_each_vector(columns, [&](int slot, int64_t column) {
      const auto dy = grads.get(slot, column), x = inputs.get(slot, column);
      const auto w = load_vector<Kind::kWidth>(weight + column);
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kWidth; ++i) {
        const W g = widen(dy[i]) * (widen(w[i]) + offset);
        sums[0] += g;
        sums[1] += g * (widen(x[i]) - center);
      }
    });
    team.sum(sums);
    const W mean_g = sums[0] / count, mean_gn = sums[1] * scale / count;
    const T* dsum = row_at<T>(a.dsum, start);
    T* dx = row_at<T>(a.dx, start);
    team.for_each_vector(columns, [&](int slot, int64_t column) {
      const auto dy = grads.get(slot, column), x = inputs.get(slot, column);
      const auto w = load_vector<Kind::kWidth>(weight + column);
      typename Kind::Values others{}, result;
      if (dsum != nullptr) others = load_vector<Kind::kWidth>(dsum + column);
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kWidth; ++i) {
        const W grad = widen(dy[i]), n = (widen(x[i]) - center) * scale;
        W value = (grad * (widen(w[i]) + offset) - mean_g - n * mean_gn) * scale;
        if (dsum != nullptr) value += widen(others[i]);
        result[i] = Rounding<T>::of(value);
        dweight.add(slot, column, i, grad * n);
        dbias.add(slot, column, i, grad);
      }
      store_vector(dx + column, result);
    });
  }
  dweight.finish(team, a.columns);
  dbias.finish(team, a.columns);
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, void* stream) {
  if (a.rows == 0) return;  // launches need blocks
  with_type(a.dtype, [&](auto zero) {
    const bool is_aligned = are_aligned(a.x, a.residual, a.weight, a.bias, a.y, a.sum);
    with_row_kind<decltype(zero), 32>(a.columns, is_aligned, [&](auto kind, RowShape shape) {
      const auto blocks = static_cast<unsigned>((a.rows + shape.teams - 1) / shape.teams);
      launch("layer_norm_forward", layer_norm_rows<decltype(kind)>, blocks, shape.threads(), 0,
             static_cast<Stream>(stream), a, shape.team_size);
    });
  });
}

void layer_norm_backward(const LayerNormBackward& a, void* stream) {
  if (a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using W = Wide<decltype(zero)>;
    const auto queue = static_cast<Stream>(stream);
    if (a.rows > 0) {
      const bool is_aligned = are_aligned(a.dy, a.dsum, a.x, a.weight, a.dx, a.scratch);
      // Two sums per column: 32 would not stay in registers.
      with_row_kind<decltype(zero), 16>(a.columns, is_aligned, [&](auto kind, RowShape shape) {
        launch("layer_norm_backward", layer_norm_gradients<decltype(kind)>, static_cast<unsigned>(a.blocks),
               shape.threads(), 0, queue, a, shape.team_size);
      });
    }
    const W* parts = static_cast<const W*>(a.scratch);
    launch_add_parts("layer_norm_backward, sum of dweight", a.blocks, 2 * a.columns, a.columns, parts,
                     static_cast<W*>(a.dweight), queue);
    launch_add_parts("layer_norm_backward, sum of dbias", a.blocks, 2 * a.columns, a.columns, parts + a.columns,
                     static_cast<W*>(a.dbias), queue);
  });
}

}  // namespace megalith::ops::gpu

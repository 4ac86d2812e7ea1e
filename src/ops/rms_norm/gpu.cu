// Each row is read once and kept in registers; the weight's gradient comes from dx's pass, summed over blocks of rows
// in order.
#include "ops/gpu/largest.h"
#include "ops/gpu/row.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops::gpu {
namespace {

template <typename Kind>
__global__ void __launch_bounds__(Kind::kMostThreads) rms_norm_rows(RmsNormForward a, int team_size) {
  using T = typename Kind::T;
  using W = typename Kind::W;
  const RowTeam<Kind> team(team_size);
  const int64_t row = int64_t{blockIdx.x} * team.count + team.index;
  const bool has_row = row < a.rows;
  const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;
  const T* residual = row_at<T>(a.residual, start);
  T* sum = row_at<T>(a.sum, start);
  KeptRow<Kind> normed(team, columns, row_at<T>(a.x, start));
  if (residual != nullptr) normed.add(team, columns, residual, sum);
  // Rounded, as backward will see it.
  W squares[] = {0};
  team.for_each_vector(columns, [&](int slot, int64_t column) {
    const auto x = normed.get(slot, column);
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kWidth; ++i) squares[0] += widen(x[i]) * widen(x[i]);
  });
  team.sum(squares);
  const W scale = W(1) / sqrt(squares[0] / static_cast<W>(a.columns) + static_cast<W>(a.eps));
  if (has_row && team.member == 0) static_cast<W*>(a.inv_rms)[row] = scale;
  const T* weight = static_cast<const T*>(a.weight);
  T* y = row_at<T>(a.y, start);
  Largest<W> largest;
  team.for_each_vector(columns, [&](int slot, int64_t column) {
    const auto x = normed.get(slot, column), w = load_vector<Kind::kWidth>(weight + column);
    typename Kind::Values result;
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kWidth; ++i) {
      result[i] = Rounding<T>::of(rounded<T>(widen(x[i]) * scale) * widen(w[i]));
      largest.take(widen(result[i]));
    }
    store_vector(y + column, result);
  });
  largest.raise(a.amax);
}

// n = x * inv_rms,  g = dy * weight:  dx = inv_rms * (g - n * mean(g * n)),  dweight = sum over rows of dy * n.
template <typename Kind>
__global__ void __launch_bounds__(Kind::kMostThreads) rms_norm_gradients(RmsNormBackward a, int team_size) {
  using T = typename Kind::T;
  using W = typename Kind::W;
  const RowTeam<Kind> team(team_size);
  const int64_t block = blockIdx.x, last = (block + 1) * a.rows / a.blocks;
  const T* weight = static_cast<const T*>(a.weight);
  ColumnSums<Kind> dweight(team, a.columns, static_cast<W*>(a.scratch) + block * a.columns);
  for (int64_t first = block * a.rows / a.blocks; first < last; first += team.count) {
    const int64_t row = first + team.index;
    const bool has_row = row < last;
    const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;
    const KeptRow<Kind> grads(team, columns, row_at<T>(a.dy, start)), inputs(team, columns, row_at<T>(a.x, start));
    W dot[] = {0};
    team.for_each_vector(columns, [&](int slot, int64_t column) {
      const auto dy = grads.get(slot, column), x = inputs.get(slot, column);
      const auto w = load_vector<Kind::kWidth>(weight + column);
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kWidth; ++i) dot[0] += widen(dy[i]) * widen(w[i]) * widen(x[i]);
    });
    team.sum(dot);
    const W scale = has_row ? static_cast<const W*>(a.inv_rms)[row] : W(0);
    const W mean = dot[0] * scale / static_cast<W>(a.columns);
    const T* dsum = row_at<T>(a.dsum, start);
    T* dx = row_at<T>(a.dx, start);
    team.for_each_vector(columns, [&](int slot, int64_t column) {
      const auto dy = grads.get(slot, column), x = inputs.get(slot, column);
      const auto w = load_vector<Kind::kWidth>(weight + column);
      typename Kind::Values others{}, result;
      if (dsum != nullptr) others = load_vector<Kind::kWidth>(dsum + column);
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kWidth; ++i) {
        const W grad = widen(dy[i]), n = widen(x[i]) * scale;
        W value = (grad * widen(w[i]) - n * mean) * scale;
        if (dsum != nullptr) value += widen(others[i]);
        result[i] = Rounding<T>::of(value);
        // forward multiplied the rounded n
        dweight.add(slot, column, i, grad * rounded<T>(n));
      }
      store_vector(dx + column, result);
    });
  }
  dweight.finish(team, a.columns);
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a, void* stream) {
  if (a.rows == 0) return;  // launches need blocks
  with_type(a.dtype, [&](auto zero) {
    const bool is_aligned = are_aligned(a.x, a.residual, a.weight, a.y, a.sum);
    with_row_kind<decltype(zero), 32>(a.columns, is_aligned, [&](auto kind, RowShape shape) {
      const auto blocks = static_cast<unsigned>((a.rows + shape.teams - 1) / shape.teams);
      launch("rms_norm_forward", rms_norm_rows<decltype(kind)>, blocks, shape.threads(), 0, static_cast<Stream>(stream),
             a, shape.team_size);
    });
  });
}

void rms_norm_backward(const RmsNormBackward& a, void* stream) {
  if (a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using W = Wide<decltype(zero)>;
    const auto queue = static_cast<Stream>(stream);
    if (a.rows > 0) {
      const bool is_aligned = are_aligned(a.dy, a.dsum, a.x, a.weight, a.dx, a.scratch);
      with_row_kind<decltype(zero), 32>(a.columns, is_aligned, [&](auto kind, RowShape shape) {
        launch("rms_norm_backward", rms_norm_gradients<decltype(kind)>, static_cast<unsigned>(a.blocks),
               shape.threads(), 0, queue, a, shape.team_size);
      });
    }
    launch_add_parts("rms_norm_backward, sum of dweight", a.blocks, a.columns, a.columns,
                     static_cast<const W*>(a.scratch), static_cast<W*>(a.dweight), queue);
  });
}

}  // namespace megalith::ops::gpu

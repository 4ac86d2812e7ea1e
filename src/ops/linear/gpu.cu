// The embedding and the bias' gradient. The thread that finds the first of an id's tokens in the sorted list adds them
// all, in order. The bias sums runs of rows, then the runs' sums.
#include "ops/gpu/elementwise.h"
#include "ops/gpu/row.h"
#include "ops/linear/gpu_kernel.h"

namespace megalith::ops::gpu {
namespace {

// U: the widest unit that the addresses allow.
template <typename U, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads) gather(VectorGrid grid, GatherRows a) {
  for_each_vector(grid, [&](int64_t token, int64_t vector) {
    const int64_t row = a.ids[token] - a.start, byte = vector * kCount * static_cast<int64_t>(sizeof(U));
    Vector<U, kCount> unit = {};
    if (row >= 0 && row < a.num_rows) {
      const char* const from = static_cast<const char*>(a.table) + row * a.table_stride_bytes + byte;
      unit = load_vector<kCount>(reinterpret_cast<const U*>(from));
    }
    store_vector(reinterpret_cast<U*>(static_cast<char*>(a.y) + token * a.row_bytes + byte), unit);
  });
}

template <typename U, int kCount>
void launch_gather(const GatherRows& a, void* stream) {
  launch_vectors("embedding_forward", gather<U, kCount>, a.num_ids,
                 a.row_bytes / (kCount * static_cast<int64_t>(sizeof(U))), stream, a);
}

constexpr int kTokensAtOnce = 8;

template <typename T, int kCount>
__global__ void __launch_bounds__(kElementwiseThreads) scatter(VectorGrid grid, ScatterRows a) {
  using W = Wide<T>;
  constexpr int kWideCount = kCount < 4 ? kCount : 4;
  for_each_vector(grid, [&](int64_t first, int64_t vector) {
    const int64_t id = a.sorted[first], row = id - a.start, column = vector * kCount;
    if (row < 0 || row >= a.num_rows || (first > 0 && a.sorted[first - 1] == id)) return;
    W* const dw = static_cast<W*>(a.dw) + row * a.dw_stride + column;
    const auto load = [&](int64_t i) {
      return load_vector<kCount>(static_cast<const T*>(a.dy) + a.order[i] * a.dy_stride + column);
    };
    W sums[kCount];
    const auto add = [&](const Vector<T, kCount>& dy) {
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) sums[i] += widen(dy[i]);
    };
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; i += kWideCount) {
      const auto some = load_vector<kWideCount>(static_cast<const W*>(dw) + i);
      MEGALITH_UNROLL
      for (int j = 0; j < kWideCount; ++j) sums[i + j] = some[j];
    }
    int64_t token = first;
    for (; token + kTokensAtOnce <= a.num_ids && a.sorted[token + kTokensAtOnce - 1] == id; token += kTokensAtOnce) {
      Vector<T, kCount> rows[kTokensAtOnce];
      MEGALITH_UNROLL
      for (int i = 0; i < kTokensAtOnce; ++i) rows[i] = load(token + i);
      MEGALITH_UNROLL
      for (int i = 0; i < kTokensAtOnce; ++i) add(rows[i]);
    }
    for (; token < a.num_ids && a.sorted[token] == id; ++token) add(load(token));
    MEGALITH_UNROLL
    for (int i = 0; i < kCount; i += kWideCount) {
      Vector<W, kWideCount> some;
      MEGALITH_UNROLL
      for (int j = 0; j < kWideCount; ++j) some[j] = sums[i + j];
      store_vector(dw + i, some);
    }
  });
}

// A block's: neighbours load 512 bytes of a row; a run has several slices.
constexpr int kSumLanes = 32, kRunSlices = 8;

template <typename T, int kCount>
__global__ void __launch_bounds__(kSumLanes* kRunSlices) sum_runs(SumRows a, unsigned column_blocks) {
  using W = Wide<T>;
  constexpr int kWidth = kSumLanes * kCount;
  MEGALITH_SHARED(W, of_slices, kRunSlices * kWidth);
  const int place = static_cast<int>(threadIdx.x) % kSumLanes, slice = static_cast<int>(threadIdx.x) / kSumLanes;
  const int64_t run = blockIdx.x / column_blocks, first_column = int64_t{blockIdx.x % column_blocks} * kWidth;
  const int64_t first = run * a.rows / a.runs, last = (run + 1) * a.rows / a.runs,
                column = first_column + place * kCount;
  W sums[kCount] = {};
  if (column < a.columns) {
    const T* const dy = static_cast<const T*>(a.dy) + column;
    MEGALITH_UNROLL_BY(4)
    for (int64_t row = first + slice; row < last; row += kRunSlices) {
      const auto values = load_vector<kCount>(dy + row * a.stride);
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) sums[i] += widen(values[i]);
    }
  }
  MEGALITH_UNROLL
  for (int i = 0; i < kCount; ++i) of_slices[slice * kWidth + place * kCount + i] = sums[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kWidth; c += static_cast<int>(blockDim.x)) {
    if (first_column + c >= a.columns) continue;
    // Includes the previous content.
    W sum = run == 0 ? static_cast<const W*>(a.db)[first_column + c] : W(0);
    for (int s = 0; s < kRunSlices; ++s) sum += of_slices[s * kWidth + c];
    static_cast<W*>(a.parts)[run * a.columns + first_column + c] = sum;
  }
}

int64_t blocks_of_columns(int64_t columns, int64_t columns_of_block) {
  return (columns + columns_of_block - 1) / columns_of_block;
}

}  // namespace

void gather_rows(const GatherRows& a, void* stream) {
  if (are_aligned(a.table, a.y) && a.row_bytes % kVectorBytes == 0 && a.table_stride_bytes % kVectorBytes == 0) {
    launch_gather<uint32_t, 4>(a, stream);
  } else if (a.element_bytes == 8) {
    launch_gather<uint64_t, 1>(a, stream);
  } else if (a.element_bytes == 4) {
    launch_gather<uint32_t, 1>(a, stream);
  } else {
    launch_gather<uint16_t, 1>(a, stream);
  }
}

void scatter_rows(const ScatterRows& a, void* stream) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_aligned = are_aligned(a.dy, a.dw) && is_whole_vectors<T>(a.columns) &&
                            is_whole_vectors<T>(a.dy_stride) && is_whole_vectors<Wide<T>>(a.dw_stride);
    with_vector_width<T>(is_aligned, [&](auto count) {
      launch_vectors("embedding_wgrad", scatter<T, count()>, a.num_ids, a.columns / count(), stream, a);
    });
  });
}

int64_t runs_of_rows(int64_t rows, int64_t columns) {
  const int64_t most = std::max<int64_t>(1, 1024 / std::max<int64_t>(1, blocks_of_columns(columns, kSumLanes * 8)));
  return std::clamp<int64_t>((rows + 63) / 64, 1, most);
}

void sum_rows(const SumRows& a, void* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const bool is_aligned = are_aligned(a.dy) && is_whole_vectors<T>(a.columns) && is_whole_vectors<T>(a.stride);
    const auto queue = static_cast<Stream>(stream);
    with_vector_width<T>(is_aligned, [&](auto count) {
      const auto column_blocks = static_cast<unsigned>(blocks_of_columns(a.columns, kSumLanes * count()));
      launch("bias_grad, runs", sum_runs<T, count()>, column_blocks * static_cast<unsigned>(a.runs),
             kSumLanes * kRunSlices, 0, queue, a, column_blocks);
    });
    launch_add_parts("bias_grad", a.runs, a.columns, a.columns, static_cast<const W*>(a.parts), static_cast<W*>(a.db),
                     queue);
  });
}

}  // namespace megalith::ops::gpu

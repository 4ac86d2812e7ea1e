// One block of threads, which itself ends the iteration: the host need not ask, and a round costs two barriers, not two
// launches. A router's matrix fits into the second cache: 8,192 tokens of 64 experts are 4 MiB.
//
// Waves take rows in turn, compute their factors from the columns' and add their contributions to every column; waves'
// sums meet in memory.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/sinkhorn/kernel.h"

namespace megalith::ops::gpu {
namespace {

// Many columns per lane need more registers, which a block's threads share.
constexpr int balance_threads(int slots) { return slots > 2 ? 256 : 1024; }

struct SinkhornScratch {
  double *of_rows, *of_columns, *of_waves;  // (rows), (columns), (waves, columns)
};

// A round: the rows' new factors, and their contributions in of_waves. kSlots: columns per lane.
template <int kSlots>
__device__ void scale_rows(const SinkhornCall& a, const SinkhornScratch& s) {
  const int waves = static_cast<int>(blockDim.x) / wave_size();
  double factors[kSlots], sums[kSlots];
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    const int column = i * wave_size() + lane();
    factors[i] = column < a.columns ? s.of_columns[column] : 0;
    sums[i] = 0;
  }
  for (int64_t row = wave(); row < a.rows; row += waves) {
    double cost[kSlots], sum = 0;
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      const int column = i * wave_size() + lane();
      cost[i] = column < a.columns ? a.y[row * a.columns + column] : 0;
      sum += cost[i] * factors[i];
    }
    sum = combine_lanes(Sum{}, sum, wave_size());
    const double of_row = 1 / (static_cast<double>(a.rows) * (sum + kSinkhornEpsilon));
    if (lane() == 0) s.of_rows[row] = of_row;
    MEGALITH_UNROLL
    for (int i = 0; i < kSlots; ++i) sums[i] += of_row * cost[i];
  }
  MEGALITH_UNROLL
  for (int i = 0; i < kSlots; ++i) {
    const int column = i * wave_size() + lane();
    if (column < a.columns) s.of_waves[wave() * a.columns + column] = sums[i];
  }
}

// The columns' new factors; returns their mean change.
__device__ double scale_columns(const SinkhornCall& a, const SinkhornScratch& s) {
  const int waves = static_cast<int>(blockDim.x) / wave_size();
  double moved = 0;
  for (int64_t column = threadIdx.x; column < a.columns; column += blockDim.x) {
    double sum = 0;
    for (int w = 0; w < waves; ++w) sum += s.of_waves[w * a.columns + column];
    const double next = 1 / (static_cast<double>(a.columns) * (sum + kSinkhornEpsilon));
    const double by = next - s.of_columns[column];
    moved += by < 0 ? -by : by;
    s.of_columns[column] = next;
  }
  return sum_over_block(moved) / static_cast<double>(a.columns);
}

template <typename T, int kSlots>
__global__ void __launch_bounds__(balance_threads(kSlots)) balance(SinkhornCall a) {
  const SinkhornScratch s{a.scratch, a.scratch + a.rows, a.scratch + a.rows + a.columns};
  const T* const x = static_cast<const T*>(a.x);
  for (int64_t i = threadIdx.x; i < a.rows * a.columns; i += blockDim.x) a.y[i] = ::exp(static_cast<double>(x[i]));
  for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) s.of_columns[i] = 1;
  __syncthreads();  // the columns' factors are written
  for (int round = 0; round < kMostSinkhornRounds; ++round) {
    scale_rows<kSlots>(a, s);
    __syncthreads();  // the waves' sums are written
    // Its sum over the block comes after the new factors, and is a barrier.
    if (!(scale_columns(a, s) > kSinkhornTolerance)) break;
  }
  for (int64_t i = threadIdx.x; i < a.rows * a.columns; i += blockDim.x) {
    a.y[i] = a.y[i] * s.of_columns[i % a.columns] * s.of_rows[i / a.columns];
  }
}

template <typename T>
void launch_balance(const SinkhornCall& a, Stream stream) {
  if (a.columns <= 64) {  // waves have at least 32 lanes
    launch("sinkhorn", balance<T, 2>, 1, balance_threads(2), 0, stream, a);
  } else {
    static_assert(kMostSinkhornColumns <= 16 * 32);
    launch("sinkhorn", balance<T, 16>, 1, balance_threads(16), 0, stream, a);
  }
}

}  // namespace

void sinkhorn(const SinkhornCall& a, void* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  const auto queue = static_cast<Stream>(stream);
  if (a.dtype == Dtype::kFloat64) {
    launch_balance<double>(a, queue);
  } else {
    launch_balance<float>(a, queue);
  }
}

}  // namespace megalith::ops::gpu

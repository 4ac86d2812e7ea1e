// Rows per expert are read on the device. The host starts the most blocks there may be; a block finds its expert's tile
// by counting tiles, and ends if there is none.
#include "ops/gpu/tile_product.h"
#include "ops/grouped_linear/kernel.h"

namespace megalith::ops::gpu {
namespace {

template <typename T>
__host__ __device__ int64_t tiles_of(int64_t count) {
  return (count + kTile<T> - 1) / kTile<T>;
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kTileThreads) sum_gradients(GroupedGradient a, Operand<T> dy, Operand<T> x) {
  const int64_t across = tiles_of<T>(a.h), down = tiles_of<T>(a.o), block = blockIdx.x;
  const int64_t expert = block / (down * across), tile = block % (down * across);
  const int64_t first = a.offsets[expert], rows = a.offsets[expert + 1] - first;
  if (rows == 0 && a.accumulate) return;
  dy.data += first * dy.stride;
  x.data += first * x.stride;
  auto* const dw = static_cast<Wide<T>*>(a.dw) + expert * a.o * a.h;
  multiply_tile<kLanes, true, true>(dy, x, a.o, a.h, rows, tile / across * kTile<T>, tile % across * kTile<T>,
                                    [&](int64_t row, int64_t column, Wide<T> sum) {
                                      Wide<T>& place = dw[row * a.h + column];
                                      place = a.accumulate ? place + sum : sum;
                                    });
}

// kIsDepth: w's rows follow each other along k, as in the input's gradient.
template <typename T, int kLanes, bool kIsDepth>
__global__ void __launch_bounds__(kTileThreads) multiply_rows(GroupedProduct a, Operand<T> x, Operand<T> w) {
  const int64_t across = tiles_of<T>(a.n), block = blockIdx.x;
  int64_t tile = block / across, expert = 0, first = 0, last = 0;
  for (; expert <= a.experts; ++expert) {
    first = a.offsets[expert];
    last = expert < a.experts ? a.offsets[expert + 1] : a.rows;
    const int64_t tiles = tiles_of<T>(last - first);
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (expert > a.experts) return;
  const int64_t k = expert < a.experts ? a.k : 0;  // rows without an expert are 0
  x.data += first * x.stride;
  w.data += expert * a.n * a.k;
  T* const y = static_cast<T*>(a.y) + first * a.n;
  multiply_tile<kLanes, false, kIsDepth>(
      x, w, last - first, a.n, k, tile * kTile<T>, block % across * kTile<T>,
      [&](int64_t row, int64_t column, Wide<T> sum) { y[row * a.n + column] = Rounding<T>::of(sum); });
}

dim3 grid_of(const char* name, int64_t blocks) {
  if (blocks > 0x7FFFFFFF) throw std::runtime_error(std::string(name) + ": too many tiles for one launch");
  return {static_cast<unsigned>(blocks)};
}

// body(zero of the dtype, lanes per wave or 0, as types)
template <typename Body>
void with_type_and_lanes(Dtype dtype, Body&& body) {
  with_type(dtype, [&](auto zero) {
    if constexpr (kHasFragments<decltype(zero)>)
      with_lanes([&](auto lanes) { body(zero, lanes); });
    else
      body(zero, std::integral_constant<int, 0>{});
  });
}

}  // namespace

void grouped_product(const GroupedProduct& a, void* stream) {
  if (a.rows == 0 || a.n == 0) return;
  with_type_and_lanes(a.dtype, [&](auto zero, auto lanes) {
    using T = decltype(zero);
    constexpr int kLanes = decltype(lanes)::value;
    constexpr const char* kName = "grouped_product";
    // Each expert's last tile may be partial, and that of rows without one.
    const dim3 grid = grid_of(kName, (tiles_of<T>(a.rows) + a.experts + 1) * tiles_of<T>(a.n));
    const auto x = Operand<T>::of(a.x, a.x_stride, a.k);
    const int64_t length = a.w_is_transposed ? a.k : a.n;
    const auto w = Operand<T>::of(a.w, length, length);
    launch(kName, a.w_is_transposed ? multiply_rows<T, kLanes, false> : multiply_rows<T, kLanes, true>, grid,
           dim3(kTileThreads), 0, static_cast<Stream>(stream), a, x, w);
  });
}

void grouped_gradient(const GroupedGradient& a, void* stream) {
  if (a.experts == 0 || a.o == 0 || a.h == 0) return;
  with_type_and_lanes(a.dtype, [&](auto zero, auto lanes) {
    using T = decltype(zero);
    constexpr const char* kName = "grouped_gradient";
    const dim3 grid = grid_of(kName, a.experts * tiles_of<T>(a.o) * tiles_of<T>(a.h));
    launch(kName, sum_gradients<T, decltype(lanes)::value>, grid, dim3(kTileThreads), 0, static_cast<Stream>(stream), a,
           Operand<T>::of(a.dy, a.dy_stride, a.o), Operand<T>::of(a.x, a.x_stride, a.h));
  });
}

}  // namespace megalith::ops::gpu

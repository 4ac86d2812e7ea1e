// fp32 products. A task keeps its part of b, packed into panels a few registers wide, in L2, and a strip of a's rows in
// L1, while a tile of c stays in registers: Goto and van de Geijn 2008, doi:10.1145/1356052.1356053. A step in k of the
// AVX-512 tile loads 16 operands for 28 products, so that two pipes of 4 cycles each stay busy.
#include <algorithm>
#include <array>
#include <utility>

#include "ops/cpu/tiles.h"
#include "ops/linear/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kStripRows = 14, kStripVectors = 2;  // 28 sums, 2 of b, 1 of a: 31 of 32 registers
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int kStripRows = 6, kStripVectors = 2;  // 15 of 16
#else
constexpr int kStripRows = 4, kStripVectors = 4;  // 21 of Arm's 32; strips are as wide as a register
#endif
constexpr int64_t kVector = kLanes<float>, kStripPanel = kStripVectors * kVector;
constexpr int64_t kMostDepth = FloatProduct::kMostBlockK;
// A strip is (rows, kRowStride), or (k, kVector) if a is transposed. Strides of powers of two would use few sets of the
// cache.
constexpr int64_t kRowStride = kMostDepth + 16;
constexpr int64_t kStripSize = std::max(kStripRows * kRowStride, kMostDepth * kVector) + 16;
constexpr int64_t kStripsAtOnce = 8;  // of a transposed a, for whole cache lines
constexpr int64_t kRowsAtOnce = 8;    // of k: read and written in long runs
static_assert(kStripRows <= kVector);

// c (rows, kStripPanel) = strip panel + bias, or c += strip panel.
using StripTile = void(int64_t k, const float* strip, const float* panel, const float* bias, bool adds, float* c,
                       int64_t c_stride);

template <int kRows, bool kIsTransposed>
void strip_tile(int64_t k, const float* strip, const float* panel, const float* bias, bool adds, float* c,
                int64_t c_stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kStripVectors; ++v) __builtin_prefetch(c + r * c_stride + v * kVector, 1, 3);
  }
  Lanes<float> sums[kRows][kStripVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kStripVectors; ++v) sums[r][v] = Lanes<float>(0.f);
  }
  for (int64_t i = 0; i < k; ++i) {
    Lanes<float> right[kStripVectors];
    for (int v = 0; v < kStripVectors; ++v) right[v] = Lanes<float>::loadu(panel + i * kStripPanel + v * kVector);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes<float> left(kIsTransposed ? strip[i * kVector + r] : strip[r * kRowStride + i]);
      for (int v = 0; v < kStripVectors; ++v) sums[r][v] = at::vec::fmadd(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kStripVectors; ++v) {
      float* to = c + r * c_stride + v * kVector;
      Lanes<float> sum = sums[r][v];
      if (adds)
        sum = Lanes<float>::loadu(to) + sum;
      else if (bias != nullptr)
        sum = Lanes<float>::loadu(bias + v * kVector) + sum;
      sum.store(to);
    }
  }
}

template <bool kIsTransposed, int... kFewer>
constexpr std::array<StripTile*, sizeof...(kFewer)> strip_tiles(std::integer_sequence<int, kFewer...>) {
  return {&strip_tile<kFewer + 1, kIsTransposed>...};
}

StripTile* tile_of(int64_t rows, bool is_transposed) {
  using Rows = std::make_integer_sequence<int, kStripRows>;
  static constexpr auto kPlain = strip_tiles<false>(Rows{}), kTransposed = strip_tiles<true>(Rows{});
  return (is_transposed ? kTransposed : kPlain)[static_cast<size_t>(rows - 1)];
}

// Packs b's rows first_k ... first_k + depth; columns past the last are 0.
void pack_panels(const FloatProduct& call, int64_t column, int64_t columns, int64_t first_k, int64_t depth,
                 float* panels) {
  const int64_t whole = columns / kStripPanel * kStripPanel;
  if (whole < columns) std::fill_n(panels + whole * depth, depth * kStripPanel, 0.f);
  if (call.b_is_transposed) {
    for (int64_t i = 0; i < columns; i += kStripPanel) {
      at::vec::transpose_mxn<float>(call.b + (column + i) * call.b_stride + first_k, call.b_stride, panels + i * depth,
                                    kStripPanel, static_cast<int>(std::min(kStripPanel, columns - i)),
                                    static_cast<int>(depth));
    }
    return;
  }
  for (int64_t begin = 0; begin < depth; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, depth);
    for (int64_t i = 0; i < columns; i += kStripPanel) {
      for (int64_t row = begin; row < end; ++row) {
        const float* b = call.b + (first_k + row) * call.b_stride + column + i;
        float* out = panels + i * depth + row * kStripPanel;
        if (i < whole) {
          for (int v = 0; v < kStripVectors; ++v) Lanes<float>::loadu(b + v * kVector).store(out + v * kVector);
        } else {
          std::copy_n(b, columns - i, out);
        }
      }
    }
  }
}

// The rows of a task in strips of nearly one size.
struct Strips {
  int64_t first_row, num_rows;

  int64_t count() const { return (num_rows + kStripRows - 1) / kStripRows; }
  int64_t first(int64_t strip) const { return first_row + strip * num_rows / count(); }
  int64_t rows(int64_t strip) const { return first(strip + 1) - first(strip); }
};

void pack_strips(const FloatProduct& call, const Strips& strips, int64_t begin, int64_t end, int64_t first_k,
                 int64_t depth, float* out) {
  if (!call.a_is_transposed) {
    for (int64_t s = begin; s < end; ++s, out += kStripSize) {
      const float* a = call.a + strips.first(s) * call.a_stride + first_k;
      for (int64_t r = 0; r < strips.rows(s); ++r) std::copy_n(a + r * call.a_stride, depth, out + r * kRowStride);
    }
    return;
  }
  for (int64_t i = 0; i < depth; i += kRowsAtOnce) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = strips.first(s);
      for (int64_t row = i; row < std::min(i + kRowsAtOnce, depth); ++row) {
        const float* a = call.a + (first_k + row) * call.a_stride + first;
        float* to = out + (s - begin) * kStripSize + row * kVector;
        if (first + kVector <= call.m)
          Lanes<float>::loadu(a).store(to);
        else
          std::copy_n(a, strips.rows(s), to);
      }
    }
  }
}

// The last columns, fewer than a panel has.
void multiply_edge(StripTile* tile, int64_t k, const float* strip, const float* panel, const float* bias, bool adds,
                   int64_t rows, int64_t columns, float* c, int64_t c_stride) {
  alignas(64) float sums[kStripRows * kStripPanel];
  tile(k, strip, panel, nullptr, false, sums, kStripPanel);
  for (int64_t r = 0; r < rows; ++r) {
    float* to = c + r * c_stride;
    for (int64_t i = 0; i < columns; ++i) {
      const float sum = sums[r * kStripPanel + i];
      to[i] = adds ? to[i] + sum : bias != nullptr ? bias[i] + sum : sum;
    }
  }
}

void multiply_block(const FloatProduct& call, const Strips& strips, int64_t column, int64_t columns, int64_t first_k,
                    int64_t depth, const float* panels, float* packed) {
  const int64_t at_once = call.a_is_transposed ? kStripsAtOnce : 1;
  const bool adds = call.accumulate || first_k > 0;
  for (int64_t begin = 0; begin < strips.count(); begin += at_once) {
    const int64_t end = std::min(begin + at_once, strips.count());
    pack_strips(call, strips, begin, end, first_k, depth, packed);
    for (int64_t s = begin; s < end; ++s) {
      const int64_t rows = strips.rows(s);
      const float* strip = packed + (s - begin) * kStripSize;
      StripTile* const tile = tile_of(rows, call.a_is_transposed);
      for (int64_t i = 0; i < columns; i += kStripPanel) {
        const float* panel = panels + i * depth;
        const float* bias = call.bias == nullptr ? nullptr : call.bias + column + i;
        float* c = call.c + strips.first(s) * call.c_stride + column + i;
        if (i + kStripPanel <= columns)
          tile(depth, strip, panel, bias, adds, c, call.c_stride);
        else
          multiply_edge(tile, depth, strip, panel, bias, adds, rows, columns - i, c, call.c_stride);
      }
    }
  }
}

}  // namespace

void float_product_tasks(const FloatProduct& call, std::atomic<int64_t>* next) {
  Scratch memory;
  const int64_t padded = (call.task_columns + kStripPanel - 1) / kStripPanel * kStripPanel;
  auto* panels = memory.take<float>(padded * call.block_k);
  auto* packed = memory.take<float>((call.a_is_transposed ? kStripsAtOnce : 1) * kStripSize);
  for (int64_t task; (task = next->fetch_add(1)) < call.num_tasks();) {
    const int64_t row = task % call.num_row_runs() * call.task_rows;
    const Strips strips{row, std::min(call.task_rows, call.m - row)};
    const int64_t column = task / call.num_row_runs() * call.task_columns;
    const int64_t columns = std::min(call.task_columns, call.n - column);
    for (int64_t first_k = 0; first_k < call.k; first_k += call.block_k) {
      const int64_t depth = std::min(call.block_k, call.k - first_k);
      pack_panels(call, column, columns, first_k, depth, panels);
      multiply_block(call, strips, column, columns, first_k, depth, panels, packed);
    }
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

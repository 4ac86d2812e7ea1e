// Gradients of linear layers and embeddings, summed wide, straight into the gradient buffer.
#include <ATen/Parallel.h>

#include "ops/cpu/tiles.h"
#include "ops/linear/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

int64_t at_most(int64_t limit, int64_t value) { return value < limit ? value : limit; }
int64_t width_of(const WgradCall& call, int64_t panel) { return at_most(kWgradPanel, call.h - panel * kWgradPanel); }

constexpr int64_t kTransposedStride = kWgradTokens + 32;  // rows 4 KB apart would share a set of the cache

// dy (t, rows of the block) -> (rows, kTransposedStride): pairs of tokens are transposed 16 by 16. Tokens past the end
// are zero.
void transpose_block(const WgradCall& call, int64_t first_row, int64_t rows, uint16_t* pairs, uint16_t* out) {
  constexpr int64_t kTokens = 32, kColumns = 256;
  alignas(64) uint16_t zeros[kColumns] = {};
  for (int64_t token = 0; token < call.t_padded(); token += kTokens) {
    for (int64_t i = 0; i < kTokens; i += 2) {
      const auto row_of = [&](int64_t t) { return t < call.t ? call.dy + t * call.dy_stride + first_row : zeros; };
      interleave(row_of(token + i), row_of(token + i + 1), rows, pairs + i * kColumns);
    }
    at::vec::transpose_mxn<float>(reinterpret_cast<const float*>(pairs), kColumns,
                                  reinterpret_cast<float*>(out + token), kTransposedStride / 2, kTokens / 2,
                                  static_cast<int>(rows));
  }
}

void prefetch_rows(const float* rows, int64_t stride, int64_t count, int64_t columns) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(rows + r * stride + c, 1, 2);
  }
}

void add_block(const float* sums, int64_t rows, int64_t columns, bool accumulate, float* dw, int64_t dw_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = sums + r * kWgradPanel;
    float* to = dw + r * dw_stride;
    for_each_lanes<float>(columns, [&](int64_t c, auto n) {
      const Lanes<float> sum = load(from + c, n);
      store(to + c, accumulate ? load(to + c, n) + sum : sum, n);
    });
  }
}

}  // namespace

void wgrad_pack(const WgradCall& call, std::atomic<int64_t>* next) {
  for (int64_t panel; (panel = next->fetch_add(1)) < call.num_panels();) {
    const int64_t width = width_of(call, panel);
    uint16_t* out = call.packed_x + panel * kWgradPanel * call.t_padded();
    for (int64_t t = 0; t < call.t_padded(); t += 2, out += 2 * kWgradPanel) {
      alignas(64) uint16_t rows[2][kWgradPanel] = {};
      const uint16_t* from[2] = {rows[0], rows[1]};
      for (int64_t i = 0; i < 2 && t + i < call.t; ++i) {
        const uint16_t* x = call.x + (t + i) * call.x_stride + panel * kWgradPanel;
        if (width == kWgradPanel)
          from[i] = x;
        else
          std::memcpy(rows[i], x, static_cast<size_t>(width) * sizeof(uint16_t));
      }
      interleave(from[0], from[1], kWgradPanel, out);
    }
  }
}

void wgrad(const WgradCall& call, std::atomic<int64_t>* next) {
  Scratch scratch;
  auto* pairs = scratch.take<uint16_t>(32 * 256);
  auto* transposed = scratch.take<uint16_t>(call.block_rows * kTransposedStride);
  auto* sums = scratch.take<float>(call.block_rows * kWgradPanel);
  const int64_t num_blocks = call.num_row_blocks() * call.num_panel_blocks();
  for (int64_t block; (block = next->fetch_add(1)) < num_blocks;) {
    const int64_t first_row = block / call.num_panel_blocks() * call.block_rows;
    const int64_t rows = at_most(call.block_rows, call.o - first_row);
    transpose_block(call, first_row, rows, pairs, transposed);
    const int64_t first_panel = block % call.num_panel_blocks() * call.block_panels;
    for (int64_t panel = first_panel; panel < at_most(call.num_panels(), first_panel + call.block_panels); ++panel) {
      float* dw = call.dw + first_row * call.dw_stride + panel * kWgradPanel;
      // Rows are far apart: without prefetching, storing takes half of the time.
      prefetch_rows(dw, call.dw_stride, rows, width_of(call, panel));
      // Cutting rows or tokens was never faster (AMX, 2 MB of L2).
      tile_product(rows, kWgradPanel, call.t_padded(), transposed, kTransposedStride,
                   call.packed_x + panel * kWgradPanel * call.t_padded(), kWgradPanel, sums, kWgradPanel, false);
      add_block(sums, rows, width_of(call, panel), call.accumulate, dw, call.dw_stride);
    }
  }
  release_tiles();
}

void column_sum(const ColumnSum& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int64_t kBlock = 128;  // columns per task; rows are summed in order
    at::parallel_for(0, (a.columns + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kBlock; first < at_most(a.columns, end * kBlock); first += kBlock) {
        const int64_t columns = at_most(kBlock, a.columns - first);
        Wide<T> sums[kBlock] = {};
        for (int64_t r = 0; r < a.rows; ++r) {
          const T* dy = static_cast<const T*>(a.dy) + r * a.stride + first;
          for_each_lanes<T>(columns,
                            [&](int64_t c, auto n) { store(sums + c, load(sums + c, n) + load(dy + c, n), n); });
        }
        Wide<T>* db = static_cast<Wide<T>*>(a.db) + first;
        for_each_lanes<T>(columns, [&](int64_t c, auto n) { store(db + c, load(db + c, n) + load(sums + c, n), n); });
      }
    });
  });
}

void scatter_add(const ScatterAdd& a) {
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, a.num_segments, 16, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        Wide<T>* dw = static_cast<Wide<T>*>(a.dw) + a.rows[s] * a.dw_stride;
        for_each_lanes<T>(a.columns, [&](int64_t c, auto n) {
          Lanes<T> sum = load(dw + c, n);
          for (int64_t i = a.starts[s]; i < a.starts[s + 1]; ++i) {
            sum = sum + load(static_cast<const T*>(a.dy) + a.tokens[i] * a.dy_stride + c, n);
          }
          store(dw + c, sum, n);
        });
      }
    });
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

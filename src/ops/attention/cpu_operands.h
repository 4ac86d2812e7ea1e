// Two kinds of arithmetic under the same names, for both kernel files:
//
//   Tile…   bf16 by AMX tiles or AVX512_BF16 dot products through oneDNN's brgemm, sums in fp32
//   Plain…  everything else: operands widened
//
// Backward keeps rows of keys: P^T and dS^T are the left operands of dV and dK, and dS^T in pairs of rows the right one
// of dQ^T.
#pragma once

#include <cstring>

#include "ops/attention/kernel.h"
#include "ops/cpu/plain_product.h"
#include "ops/cpu/tiles.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

template <typename T>
inline T* head_rows(const HeadsView& view, int64_t b, int64_t row, int64_t head) {
  return static_cast<T*>(view.data) + b * view.batch_stride + row * view.row_stride + head * view.head_stride;
}

// x (rows, columns), contiguous -> (columns, rows), rows out_stride apart
template <typename W>
inline void transpose(const W* x, int64_t rows, int64_t columns, W* out, int64_t out_stride) {
  at::vec::transpose_mxn<W>(x, columns, out, out_stride, static_cast<int>(rows), static_cast<int>(columns));
}

// One head's rows [begin, begin + count), zero-padded.
template <typename T, typename To>
inline void copy_rows(const HeadsView& view, int64_t b, int64_t begin, int64_t count, int64_t head, int64_t columns,
                      int64_t padded_rows, To* out, int64_t stride) {
  for (int64_t r = 0; r < padded_rows; ++r) {
    To* to = out + r * stride;
    if (r >= count) {
      std::memset(to, 0, static_cast<size_t>(stride) * sizeof(To));
      continue;
    }
    const T* from = head_rows<T>(view, b, begin + r, head);
    if constexpr (sizeof(T) == sizeof(To)) {
      std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(T));
    } else {
      for_each_lanes<T>(columns, [&](int64_t c, auto n) { store(to + c, load(from + c, n), n); });
    }
    if (stride > columns) std::memset(to + columns, 0, static_cast<size_t>(stride - columns) * sizeof(To));
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

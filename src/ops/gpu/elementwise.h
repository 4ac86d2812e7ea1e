// Elementwise kernels: a thread takes 16 bytes, a wave one run of memory.
#pragma once

#include <algorithm>

#include "ops/gpu/compiler.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {

inline constexpr int kElementwiseThreads = 256;
// AMD's chips count a launch's threads in 32 bits. Blocks take more work in turns.
inline constexpr unsigned kMostBlocks = 1u << 23;

// A block takes a run of one long row, or several short rows.
struct VectorGrid {
  int64_t rows, vectors;  // per row
  int log2_lanes;         // neighbouring threads in a row
  unsigned blocks_of_row, blocks;
};

inline VectorGrid make_vector_grid(int64_t rows, int64_t vectors) {
  int log2_lanes = 0;
  while ((1 << log2_lanes) < std::min<int64_t>(vectors, kElementwiseThreads)) ++log2_lanes;
  const int64_t lanes = int64_t{1} << log2_lanes, rows_of_block = kElementwiseThreads / lanes;
  const int64_t blocks_of_row = (vectors + lanes - 1) / lanes;
  // Fits: each has a kilobyte or more.
  return {.rows = rows,
          .vectors = vectors,
          .log2_lanes = log2_lanes,
          .blocks_of_row = static_cast<unsigned>(blocks_of_row),
          .blocks = static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block * blocks_of_row)};
}

template <typename Body>
__device__ void for_each_vector(const VectorGrid& grid, Body&& body) {
  const int64_t place = threadIdx.x & ((1u << grid.log2_lanes) - 1), row_of_block = threadIdx.x >> grid.log2_lanes;
  const int64_t rows_of_block = kElementwiseThreads >> grid.log2_lanes;
  for (unsigned block = blockIdx.x; block < grid.blocks; block += gridDim.x) {
    // 32 bits: a 64-bit division costs a hundred instructions.
    const unsigned block_row = block / grid.blocks_of_row, block_column = block % grid.blocks_of_row;
    const int64_t row = block_row * rows_of_block + row_of_block;
    const int64_t vector = (int64_t{block_column} << grid.log2_lanes) + place;
    if (row < grid.rows && vector < grid.vectors) body(row, vector);
  }
}

// For kernels whose first parameter is the grid.
template <typename... Parameters>
void launch_vectors(const char* name, void (*kernel)(VectorGrid, Parameters...), int64_t rows, int64_t vectors,
                    void* stream, std::type_identity_t<Parameters>... arguments) {
  if (rows == 0 || vectors == 0) return;
  const VectorGrid grid = make_vector_grid(rows, vectors);
  launch(name, kernel, std::min(grid.blocks, kMostBlocks), kElementwiseThreads, 0, static_cast<Stream>(stream), grid,
         arguments...);
}

// Calls body with the elements per thread, as a type: a 16-byte vector, or 1 if unaligned or double (for tests).
template <typename T, typename Body>
void with_vector_width(bool is_aligned, Body&& body) {
  if constexpr (sizeof(T) < sizeof(double)) {
    if (is_aligned) return body(std::integral_constant<int, kVectorBytes / static_cast<int>(sizeof(T))>{});
  }
  body(std::integral_constant<int, 1>{});
}

// Contiguous rows all begin at a vector.
template <typename T>
bool is_whole_vectors(int64_t columns) {
  return columns % (kVectorBytes / static_cast<int64_t>(sizeof(T))) == 0;
}

}  // namespace megalith::ops::gpu

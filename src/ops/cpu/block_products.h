// oneDNN's brgemm multiplies small blocks inside a parallel region; without torch's headers. ld… is a row distance in
// elements.
#pragma once

#include <cstdint>

namespace megalith::ops::cpu {

// This processor multiplies bf16 pairs (AMX tiles, AVX512_BF16), as tile_product needs.
bool has_bf16_blocks();

// c (+)= a b in fp32 for a (m, k) bf16 and b (k, n) bf16 in pairs of rows: element (i, j) is at ((i / 2) * ldb + j) * 2
// + i % 2. k is even, n a multiple of 16 and at most 64.
void tile_product(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                  float* c, int64_t ldc, bool accumulate);

// At the end of each thread's part of a parallel region.
void release_tiles();

}  // namespace megalith::ops::cpu

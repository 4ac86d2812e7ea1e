// Products of small dense blocks for kernels, which call them from inside a parallel region: LibTorch's own BLAS and
// oneDNN's brgemm, behind functions that keep torch's headers out of kernel files.
//
// All matrices are row-major; ld… is the distance of two rows in elements.
#pragma once

#include <cstdint>

namespace megalith::ops::cpu {

// Whether this processor multiplies bf16 tiles (AMX), so that tile_product works.
bool has_bf16_tiles();

// c (+)= a b in fp32 for a (m, k) bf16 and b (k, n) bf16 in pairs of rows: element (i, j) lies at
// ((i / 2) * ldb + j) * 2 + i % 2. k is even, n a multiple of 16 and at most 64.
void tile_product(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                  float* c, int64_t ldc, bool accumulate);

// Gives the tile registers back; at the end of each thread's part of a parallel region.
void release_tiles();

// c (+)= op(a) op(b) with op(a) (m, k), op(b) (k, n); a transposed operand is stored the other way round.
void plain_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);
void plain_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
                   const double* b, int64_t ldb, double* c, int64_t ldc, bool accumulate);

}  // namespace megalith::ops::cpu

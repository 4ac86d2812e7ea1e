// Block products by at::native::cpublas, of which LibTorch exports brgemm and its packing alone.
#include "ops/cpu/block_products.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

namespace megalith::ops::cpu {

namespace blas = at::native::cpublas;

bool has_bf16_tiles() {
  static const bool has = blas::could_pack(at::kBFloat16);
  return has;
}

void tile_product(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                  float* c, int64_t ldc, bool accumulate) {
  blas::brgemm(m, n, k, lda, ldb, ldc, accumulate, reinterpret_cast<const at::BFloat16*>(a),
               reinterpret_cast<const at::BFloat16*>(b), c);
}

void release_tiles() { blas::brgemm_release(); }

}  // namespace megalith::ops::cpu

// LibTorch exports only brgemm and its packing, as at::native::cpublas.
#include "ops/cpu/block_products.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <exception>

#include "device/device.h"

namespace megalith::ops::cpu {

namespace blas = at::native::cpublas;

namespace {

// ATen says yes only for AMX; oneDNN also has AVX512_BF16 kernels, unless ONEDNN_MAX_CPU_ISA forbids them. One product
// tells.
bool multiplies_pairs() {
  if (!cpu_features().avx512_bf16) return false;
  uint16_t a[2] = {0x3f80, 0x4000};  // 1, 2
  uint16_t b[32];
  for (int j = 0; j < 16; ++j) {
    b[2 * j] = 0x4040;      // 3
    b[2 * j + 1] = 0x4080;  // 4
  }
  float c[16] = {};
  try {
    tile_product(1, 16, 2, a, 2, b, 16, c, 16, false);
  } catch (const std::exception&) {
    return false;
  }
  for (const float sum : c) {
    if (sum != 11) return false;
  }
  return true;
}

}  // namespace

bool has_bf16_blocks() {
  static const bool has = blas::could_pack(at::kBFloat16) || multiplies_pairs();
  return has;
}

void tile_product(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                  float* c, int64_t ldc, bool accumulate) {
  blas::brgemm(m, n, k, lda, ldb, ldc, accumulate, reinterpret_cast<const at::BFloat16*>(a),
               reinterpret_cast<const at::BFloat16*>(b), c);
}

void release_tiles() { blas::brgemm_release(); }

}  // namespace megalith::ops::cpu

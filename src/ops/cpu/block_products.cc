// Block products by at::native::cpublas and at::addmm.
#include "ops/cpu/block_products.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/InferenceMode.h>
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

namespace {

// The wheel does not export cpublas::gemm, so blocks go through at::addmm on views of the memory.
template <typename T>
void product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
             int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  const c10::InferenceMode no_autograd;
  const auto view = [](const T* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return at::from_blob(const_cast<T*>(data), {rows, columns}, {row_stride, column_stride},
                         at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  };
  const at::Tensor left = transpose_a ? view(a, m, k, 1, lda) : view(a, m, k, lda, 1);
  const at::Tensor right = transpose_b ? view(b, k, n, 1, ldb) : view(b, k, n, ldb, 1);
  at::Tensor out = view(c, m, n, ldc, 1);
  at::addmm_out(out, out, left, right, accumulate ? 1 : 0, 1);
}

}  // namespace

void plain_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  product(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc, accumulate);
}
void plain_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
                   const double* b, int64_t ldb, double* c, int64_t ldc, bool accumulate) {
  product(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc, accumulate);
}

}  // namespace megalith::ops::cpu

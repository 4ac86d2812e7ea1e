// The double of cuBLASLt is as strict as the library, and stricter where that would compute something else.
#include "pretend/blas/cublaslt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "pretend/blas/include/cublasLt.h"

namespace megalith::pretend {
namespace {

// A (3, 2), in columns 4 apart, times B (2, 5): a product that is right until a test changes a piece of it.
struct LtCall {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found{};
  alignas(16) float of_a[8] = {1, 2, 3, -1, 4, 5, 6, -1};
  alignas(16) float of_b[10] = {1, 0, 0, 1, 1, 1, 2, 0, 0, 2};
  alignas(16) float of_c[17] = {};
  std::vector<float> workspace = std::vector<float>(kWorkspaceBytes / sizeof(float) + 4);

  LtCall() {
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, 3, 2, 4);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, 2, 5, 2);
    cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, 3, 5, 3);
    cublasLtMatmulPreferenceCreate(&preference);
    prefer<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16);
    prefer<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 8);
    prefer<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4);
  }
  ~LtCall() {
    cublasLtMatmulDescDestroy(description);
    for (const auto layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
  }

  template <typename T>
  cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t which, T value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof(value));
  }
  template <typename T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t which, T value) {
    return cublasLtMatmulDescSetAttribute(description, which, &value, sizeof(value));
  }
  cublasStatus_t choose() {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(nullptr, description, a, b, c, c, preference, 1, &found, &count);
  }
  cublasStatus_t run(const float* first_a, size_t workspace_bytes = kWorkspaceBytes) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(nullptr, description, &one, first_a, a, of_b, b, &zero, of_c, c, of_c, c, &found.algo,
                          workspace.data(), workspace_bytes, nullptr);
  }
};

TEST(CublasLtDouble, MultipliesInColumns) {
  LtCall call;
  ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
  call.of_c[0] = NAN;  // beta is 0: not read
  ASSERT_EQ(call.run(call.of_a), CUBLAS_STATUS_SUCCESS) << cublaslt().last_refusal;
  const std::vector<float> expected{1, 2, 3, 4, 5, 6, 5, 7, 9, 2, 4, 6, 8, 10, 12};
  EXPECT_EQ(std::vector<float>(call.of_c, call.of_c + 15), expected);
  EXPECT_EQ(call.of_c[15], 0);
}

TEST(CublasLtDouble, RefusesWhatTheLibraryWould) {
  LtCall call;
  const auto says = [](cublasStatus_t status, const std::string& why) {
    EXPECT_NE(status, CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublaslt().last_refusal, why);
  };
  cublasLtMatrixLayout_t layout = nullptr;
  says(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 3, 2, 2), "columns lie within each other");
  says(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 3, 0, 3), "an empty matrix");
  says(cublasLtMatrixLayoutDestroy(nullptr), "nothing is destroyed");
  says(call.set<int64_t>(CUBLASLT_MATMUL_DESC_TRANSA, 0), "an attribute of another size");

  ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
  says(call.run(call.of_a + 1), "a matrix is aligned less than the algorithm was promised");
  says(call.run(call.of_a, 100), "the workspace is too small or not aligned");
  call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  says(call.run(call.of_a), "a bias without an address");
  call.set<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.of_b);
  says(call.run(call.of_a), "the algorithm is that of another product");
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  says(call.run(call.of_a), "A and B do not fit");
  says(call.choose(), "A and B do not fit");
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  call.prefer<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_MASK);
  says(call.choose(), "parts of sums may be rounded to 16 bits");
  call.found.algo = {};
  says(call.run(call.of_a), "no algorithm of this library");
}

TEST(CublasLtDouble, RefusesScalesThatTheLibraryWouldNotTake) {
  LtCall call;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr;
  cublasLtMatrixLayoutCreate(&a, CUDA_R_8F_E4M3, 128, 16, 128);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_8F_E4M3, 128, 16, 128);
  cublasLtMatrixLayoutDestroy(call.a);
  cublasLtMatrixLayoutDestroy(call.b);
  cublasLtMatrixLayoutDestroy(call.c);
  call.a = a;
  call.b = b;
  cublasLtMatrixLayoutCreate(&call.c, CUDA_R_32F, 16, 16, 16);
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  const auto says = [](cublasStatus_t status, const std::string& why) {
    EXPECT_NE(status, CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublaslt().last_refusal, why);
  };
  constexpr int32_t kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                    kSquares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS) << cublaslt().last_refusal;
  call.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kSquares);
  says(call.choose(), "both operands have scales of blocks, or neither");
  call.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kVectors);
  says(call.choose(), "scales of blocks without an address");
  call.set<const void*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.of_b);
  call.set<const void*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.of_b);
  EXPECT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS) << cublaslt().last_refusal;
  call.set<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1);
  says(call.choose(), "scales of blocks have no fast sums");
  call.set<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0);
  call.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kSquares);
  says(call.choose(), "two operands in squares");
}

TEST(CublasLtDouble, CountsWhatIsNotDestroyed) {
  const int64_t before = cublaslt().num_objects;
  {
    const LtCall call;
    EXPECT_EQ(cublaslt().num_objects, before + 5);
  }
  EXPECT_EQ(cublaslt().num_objects, before);
}

}  // namespace
}  // namespace megalith::pretend

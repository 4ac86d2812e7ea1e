// A double of hipBLASLt on that of cuBLASLt. Device 0 is a gfx942, whose eight-bit numbers are fnuz, device 1 a gfx950
// with OCP's; either refuses the other's.
#include <cstring>
#include <vector>

#include "pretend/blas/cublaslt.h"
#include "pretend/blas/include/cublasLt.h"
#include "pretend/blas/include_hip/hipblaslt/hipblaslt.h"

namespace megalith::pretend {
namespace {

struct Chip {
  const char* architecture;
  bool is_fnuz;
};
constexpr Chip kChips[] = {{"gfx942:sramecc+:xnack-", true}, {"gfx950:sramecc+:xnack-", false}};
const Chip* last_asked = &kChips[0];

std::vector<cublasLtMatmulAlgo_t> algorithms;  // a hipBLASLt's holds the number of one

hipblasStatus_t status_of(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return HIPBLAS_STATUS_SUCCESS;
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? HIPBLAS_STATUS_NOT_SUPPORTED : HIPBLAS_STATUS_INVALID_VALUE;
}
hipblasStatus_t refuse(const char* why) {
  cublaslt().last_refusal = why;
  return HIPBLAS_STATUS_INVALID_VALUE;
}

auto* there(hipblasLtMatrixLayout_t layout) { return reinterpret_cast<cublasLtMatrixLayout_t>(layout); }
auto* there(hipblasLtMatmulDesc_t description) { return reinterpret_cast<cublasLtMatmulDesc_t>(description); }
auto* there(hipblasLtMatmulPreference_t preference) {
  return reinterpret_cast<cublasLtMatmulPreference_t>(preference);
}

bool is_of_chip(hipblasLtHandle_t handle, std::initializer_list<hipblasLtMatrixLayout_t> layouts) {
  for (const auto layout : layouts) {
    const int type = type_of(there(layout));
    const bool is_ocp = type == HIP_R_8F_E4M3 || type == HIP_R_8F_E5M2;
    const bool is_fnuz = type == HIP_R_8F_E4M3_FNUZ || type == HIP_R_8F_E5M2_FNUZ;
    if (static_cast<const Chip*>(handle)->is_fnuz ? is_ocp : is_fnuz) return false;
  }
  return true;
}
constexpr const char* kOfAnotherChip = "this chip reads other eight-bit numbers";

}  // namespace
}  // namespace megalith::pretend

using namespace megalith::pretend;

extern "C" {

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  last_asked = &kChips[device];
  cublaslt().takes_any_fp8_layout = true;
  *properties = {"a pretend accelerator", ""};
  std::strcpy(properties->gcnArchName, last_asked->architecture);
  return 0;
}

hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t /*handle*/, int* version) {
  *version = 1100;
  return HIPBLAS_STATUS_SUCCESS;
}

hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  *handle = const_cast<Chip*>(last_asked);
  return HIPBLAS_STATUS_SUCCESS;
}

// The types of both libraries have the same numbers, but for fnuz's, which only one has.
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout, hipDataType type, uint64_t rows,
                                            uint64_t cols, int64_t ld) {
  return status_of(cublasLtMatrixLayoutCreate(reinterpret_cast<cublasLtMatrixLayout_t*>(layout),
                                              static_cast<cudaDataType_t>(type), rows, cols, ld));
}
hipblasStatus_t hipblasLtMatrixLayoutDestroy(hipblasLtMatrixLayout_t layout) {
  return status_of(cublasLtMatrixLayoutDestroy(there(layout)));
}

hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* description, hipblasComputeType_t compute,
                                          hipDataType scale) {
  if (compute != HIPBLAS_COMPUTE_32F) return refuse("sums and factors are fp32");
  return status_of(cublasLtMatmulDescCreate(reinterpret_cast<cublasLtMatmulDesc_t*>(description), CUBLAS_COMPUTE_32F,
                                            static_cast<cudaDataType_t>(scale)));
}
hipblasStatus_t hipblasLtMatmulDescDestroy(hipblasLtMatmulDesc_t description) {
  return status_of(cublasLtMatmulDescDestroy(there(description)));
}

hipblasStatus_t hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t description,
                                                hipblasLtMatmulDescAttributes_t attribute, const void* value,
                                                size_t bytes) {
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const void* what) {
    return status_of(cublasLtMatmulDescSetAttribute(there(description), name, what, bytes));
  };
  const auto set_operation = [&](cublasLtMatmulDescAttributes_t name) {
    if (bytes != sizeof(int32_t)) return refuse("an attribute of another size");
    const int32_t given = *static_cast<const int32_t*>(value);
    if (given != HIPBLAS_OP_N && given != HIPBLAS_OP_T) return refuse("an operation that is not known");
    const cublasOperation_t operation = given == HIPBLAS_OP_T ? CUBLAS_OP_T : CUBLAS_OP_N;
    return set(name, &operation);
  };
  switch (attribute) {
    case HIPBLASLT_MATMUL_DESC_TRANSA:
      return set_operation(CUBLASLT_MATMUL_DESC_TRANSA);
    case HIPBLASLT_MATMUL_DESC_TRANSB:
      return set_operation(CUBLASLT_MATMUL_DESC_TRANSB);
    case HIPBLASLT_MATMUL_DESC_EPILOGUE:
      return set(CUBLASLT_MATMUL_DESC_EPILOGUE, value);
    case HIPBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, value);
    case HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, value);
    case HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, value);
    case HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, value);
  }
  return refuse("an attribute that is not known");
}

// It promises nothing of alignment, and its sums have no parts of 16 bits.
hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* preference) {
  auto* const place = reinterpret_cast<cublasLtMatmulPreference_t*>(preference);
  const cublasStatus_t status = cublasLtMatmulPreferenceCreate(place);
  const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = 1;
  cublasLtMatmulPreferenceSetAttribute(*place, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof(sums));
  for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(*place, which, &alignment, sizeof(alignment));
  }
  return status_of(status);
}
hipblasStatus_t hipblasLtMatmulPreferenceDestroy(hipblasLtMatmulPreference_t preference) {
  return status_of(cublasLtMatmulPreferenceDestroy(there(preference)));
}
hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(hipblasLtMatmulPreference_t preference,
                                                      hipblasLtMatmulPreferenceAttributes_t attribute,
                                                      const void* value, size_t bytes) {
  if (attribute != HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return refuse("a preference that is not known");
  return status_of(cublasLtMatmulPreferenceSetAttribute(there(preference), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        value, bytes));
}

hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description,
                                                hipblasLtMatrixLayout_t a, hipblasLtMatrixLayout_t b,
                                                hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
                                                hipblasLtMatmulPreference_t preference, int requested,
                                                hipblasLtMatmulHeuristicResult_t* results, int* returned) {
  *returned = 0;
  if (!is_of_chip(handle, {a, b, c})) return refuse(kOfAnotherChip);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(requested));
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(nullptr, there(description), there(a), there(b), there(c), there(d),
                                     there(preference), requested, found.data(), returned);
  for (int i = 0; i < *returned; ++i) {
    const cublasLtMatmulHeuristicResult_t& one = found[static_cast<size_t>(i)];
    const uint64_t number = algorithms.size();
    algorithms.push_back(one.algo);
    std::memcpy(results[i].algo.data, &number, sizeof(number));
    results[i].workspaceSize = results[i].algo.max_workspace_bytes = one.workspaceSize;
    results[i].state = HIPBLAS_STATUS_SUCCESS;
  }
  return status_of(status);
}

hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, const void* alpha,
                                const void* a, hipblasLtMatrixLayout_t a_layout, const void* b,
                                hipblasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                hipblasLtMatrixLayout_t c_layout, void* d, hipblasLtMatrixLayout_t d_layout,
                                const hipblasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                                hipStream_t /*stream*/) {
  if (!is_of_chip(handle, {a_layout, b_layout, c_layout})) return refuse(kOfAnotherChip);
  uint64_t number = 0;
  std::memcpy(&number, algorithm->data, sizeof(number));
  if (number >= algorithms.size()) return refuse("no algorithm of this library");
  return status_of(cublasLtMatmul(nullptr, there(description), alpha, a, there(a_layout), b, there(b_layout), beta, c,
                                  there(c_layout), d, there(d_layout), &algorithms[number], workspace, workspace_bytes,
                                  nullptr));
}

}  // extern "C"

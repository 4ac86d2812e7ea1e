// cuBLASLt and hipBLASLt, as LibTorch has loaded them, under the same names, for blas.cc.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "ops/gpu/product_plan.h"

#if defined(MEGALITH_BLAS_HIP)
#include <hip/hip_runtime_api.h>
#include <hipblaslt/hipblaslt.h>
#define MEGALITH_LT(name) hipblasLt##name
#define MEGALITH_LT_CONSTANT(name) HIPBLASLT_##name
#define MEGALITH_BLAS_CONSTANT(name) HIPBLAS_##name
#define MEGALITH_RUNTIME(name) hip##name
#else
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#define MEGALITH_LT(name) cublasLt##name
#define MEGALITH_LT_CONSTANT(name) CUBLASLT_##name
#define MEGALITH_BLAS_CONSTANT(name) CUBLAS_##name
#define MEGALITH_RUNTIME(name) cuda##name
#endif

namespace megalith::ops::gpu::lt {

using Handle = MEGALITH_LT(Handle_t);
using Layout = MEGALITH_LT(MatrixLayout_t);
using Description = MEGALITH_LT(MatmulDesc_t);
using Preference = MEGALITH_LT(MatmulPreference_t);
using Algorithm = MEGALITH_LT(MatmulAlgo_t);
using Heuristic = MEGALITH_LT(MatmulHeuristicResult_t);
#if defined(MEGALITH_BLAS_HIP)
using Status = hipblasStatus_t;
using DataType = hipDataType;
using DeviceProperties = hipDeviceProp_t;
using RuntimeStream = hipStream_t;
inline constexpr const char* kName = "hipBLASLt";
#else
using Status = cublasStatus_t;
using DataType = cudaDataType_t;
using DeviceProperties = cudaDeviceProp;
using RuntimeStream = cudaStream_t;
inline constexpr const char* kName = "cuBLASLt";
#endif

// Expands the vendors' macros (cudaGetDeviceProperties_v2).
#define MEGALITH_SYMBOL_TEXT(name) #name
#define MEGALITH_SYMBOL(name) MEGALITH_SYMBOL_TEXT(name)
#define MEGALITH_LT_FUNCTIONS(each)                                                                                    \
  each(create, MEGALITH_LT(Create)) each(get_version, MEGALITH_LT(GetVersion))                                         \
      each(create_layout, MEGALITH_LT(MatrixLayoutCreate)) each(destroy_layout, MEGALITH_LT(MatrixLayoutDestroy))      \
          each(create_description, MEGALITH_LT(MatmulDescCreate))                                                      \
              each(destroy_description, MEGALITH_LT(MatmulDescDestroy)) each(set, MEGALITH_LT(MatmulDescSetAttribute)) \
                  each(create_preference, MEGALITH_LT(MatmulPreferenceCreate))                                         \
                      each(destroy_preference, MEGALITH_LT(MatmulPreferenceDestroy))                                   \
                          each(prefer, MEGALITH_LT(MatmulPreferenceSetAttribute))                                      \
                              each(get_heuristics, MEGALITH_LT(MatmulAlgoGetHeuristic))                                \
                                  each(multiply, MEGALITH_LT(Matmul))                                                  \
                                      each(get_properties, MEGALITH_RUNTIME(GetDeviceProperties))

struct Functions {
#define MEGALITH_MEMBER(member, function) decltype(&function) member = nullptr;
  MEGALITH_LT_FUNCTIONS(MEGALITH_MEMBER)
#undef MEGALITH_MEMBER

  bool load() {
    bool has_all = true;
#define MEGALITH_LOAD(member, function)                                                          \
  member = reinterpret_cast<decltype(member)>(::dlsym(RTLD_DEFAULT, MEGALITH_SYMBOL(function))); \
  has_all = has_all && member != nullptr;
    MEGALITH_LT_FUNCTIONS(MEGALITH_LOAD)
#undef MEGALITH_LOAD
    return has_all;
  }
};

inline constexpr auto kSuccess = MEGALITH_BLAS_CONSTANT(STATUS_SUCCESS);
inline constexpr auto kSumsInFloat = MEGALITH_BLAS_CONSTANT(COMPUTE_32F);
inline constexpr auto kTransposeA = MEGALITH_LT_CONSTANT(MATMUL_DESC_TRANSA);
inline constexpr auto kTransposeB = MEGALITH_LT_CONSTANT(MATMUL_DESC_TRANSB);
inline constexpr auto kEpilogue = MEGALITH_LT_CONSTANT(MATMUL_DESC_EPILOGUE);
inline constexpr auto kBiasPointer = MEGALITH_LT_CONSTANT(MATMUL_DESC_BIAS_POINTER);
inline constexpr auto kBiasType = MEGALITH_LT_CONSTANT(MATMUL_DESC_BIAS_DATA_TYPE);
inline constexpr auto kScaleA = MEGALITH_LT_CONSTANT(MATMUL_DESC_A_SCALE_POINTER);
inline constexpr auto kScaleB = MEGALITH_LT_CONSTANT(MATMUL_DESC_B_SCALE_POINTER);
inline constexpr auto kAddsBias = MEGALITH_LT_CONSTANT(EPILOGUE_BIAS);
inline constexpr auto kMostWorkspace = MEGALITH_LT_CONSTANT(MATMUL_PREF_MAX_WORKSPACE_BYTES);
inline constexpr auto kPlain = MEGALITH_BLAS_CONSTANT(OP_N);
inline constexpr auto kTransposed = MEGALITH_BLAS_CONSTANT(OP_T);

inline Status create_description(const Functions& lt, Description* description, DataType scale) {
  return lt.create_description(description, kSumsInFloat, scale);
}

#if defined(MEGALITH_BLAS_HIP)

inline DataType data_type(ProductType type, bool has_fnuz) {
  switch (type) {
    case ProductType::kFloat32:
      return HIP_R_32F;
    case ProductType::kBFloat16:
      return HIP_R_16BF;
    case ProductType::kFloat16:
      return HIP_R_16F;
    case ProductType::kFloat8E4m3:
      return has_fnuz ? HIP_R_8F_E4M3_FNUZ : HIP_R_8F_E4M3;
    default:
      return has_fnuz ? HIP_R_8F_E5M2_FNUZ : HIP_R_8F_E5M2;
  }
}
inline std::string version_of(const Functions& lt, Handle handle) {
  int version = 0;
  lt.get_version(handle, &version);
  return std::to_string(version);
}
// CDNA 3 and later have FP8, in any layout; CDNA 3 the fnuz forms.
inline std::string architecture_of(const DeviceProperties& device) {
  const std::string name = device.gcnArchName;  // "gfx942:sramecc+:xnack-"
  return name.substr(0, name.find(':'));
}
inline ProductCapability capability_of(const Functions& /*lt*/, const DeviceProperties& device) {
  const std::string name = architecture_of(device);
  const bool has_fp8 = name == "gfx942" || name == "gfx950";
  return {.has_fp8 = has_fp8, .takes_any_fp8_layout = has_fp8, .has_block_scales = false};
}
inline bool has_fnuz(const DeviceProperties& device) { return architecture_of(device) == "gfx942"; }
inline int64_t workspace_bytes_of(const DeviceProperties& /*device*/) { return int64_t{32} << 20; }
inline void set_only_nvidias(const Functions& /*lt*/, Description /*description*/, const ProductCall& /*call*/,
                             bool /*has_scales*/) {}
inline void prefer_only_nvidias(const Functions& /*lt*/, Preference /*preference*/, const ProductCall& /*call*/) {}

#else

inline DataType data_type(ProductType type, bool /*has_fnuz*/) {
  switch (type) {
    case ProductType::kFloat32:
      return CUDA_R_32F;
    case ProductType::kBFloat16:
      return CUDA_R_16BF;
    case ProductType::kFloat16:
      return CUDA_R_16F;
    case ProductType::kFloat8E4m3:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_8F_E5M2;
  }
}
inline std::string version_of(const Functions& lt, Handle /*handle*/) { return std::to_string(lt.get_version()); }
inline std::string architecture_of(const DeviceProperties& device) {
  return "sm_" + std::to_string(10 * device.major + device.minor);
}
// FP8 since sm_89; Blackwell (sm_100) reads any layout. Scales of 128 numbers since cuBLASLt 12.9, only for Hopper.
inline ProductCapability capability_of(const Functions& lt, const DeviceProperties& device) {
  const int architecture = 10 * device.major + device.minor;
  return {.has_fp8 = architecture >= 89,
          .takes_any_fp8_layout = architecture >= 100 && architecture < 120,
          .has_block_scales = architecture == 90 && lt.get_version() >= 120900};
}
inline bool has_fnuz(const DeviceProperties& /*device*/) { return false; }
// NVIDIA's recommendation: 32 MiB from Hopper on.
inline int64_t workspace_bytes_of(const DeviceProperties& device) { return int64_t{device.major >= 9 ? 32 : 4} << 20; }
inline void set_only_nvidias(const Functions& lt, Description description, const ProductCall& call, bool has_scales) {
  const int8_t fast = call.has_fast_sums ? 1 : 0;
  lt.set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
  if (!has_scales) return;
  // CUBLASLT_MATMUL_DESC_{A,B}_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_{VEC128,BLK128x128}_32F, by number for headers
  // before 12.9. Default: one number for the operand.
  constexpr int kScaleModeOfA = 31, kScaleModeOfB = 32;
  constexpr int32_t kVectors = 4, kBlocks = 5;
  const auto set = [&](int attribute, ProductScaling scaling) {
    if (scaling == ProductScaling::kWhole) return;
    const int32_t mode = scaling == ProductScaling::kAlongSum ? kVectors : kBlocks;
    lt.set(description, static_cast<cublasLtMatmulDescAttributes_t>(attribute), &mode, sizeof(mode));
  };
  set(kScaleModeOfA, call.scaling_a);
  set(kScaleModeOfB, call.scaling_b);
}
inline void prefer_only_nvidias(const Functions& lt, Preference preference, const ProductCall& call) {
  // No partial sums in 16 bits, nor in a varying order.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  lt.prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const CallMatrix& matrix) {
    const auto bytes = static_cast<uint32_t>(matrix.alignment);
    lt.prefer(preference, which, &bytes, sizeof(bytes));
  };
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call.c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call.c);
}

#endif

}  // namespace megalith::ops::gpu::lt

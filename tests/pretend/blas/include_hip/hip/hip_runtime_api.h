// The part of HIP's runtime that ops/gpu/blas_library.h uses, for the double of hipBLASLt (../../hipblaslt.cc).
#pragma once

using hipStream_t = struct ihipStream_t*;
using hipError_t = int;  // 0: success

struct hipDeviceProp_t {
  char name[256];
  char gcnArchName[256];
};

enum hipDataType {
  HIP_R_32F = 0,
  HIP_R_16F = 2,
  HIP_R_16BF = 14,
  HIP_R_8F_E4M3 = 28,
  HIP_R_8F_E5M2 = 29,
  HIP_R_8F_E4M3_FNUZ = 1000,
  HIP_R_8F_E5M2_FNUZ = 1001,
};

extern "C" hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);

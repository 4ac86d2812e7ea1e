// The part of CUDA's runtime that ops/gpu/blas_library.h uses, for the double of cuBLASLt (../cublaslt.h).
#pragma once

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;  // 0: success

struct cudaDeviceProp {
  char name[256];
  int major, minor;
};

enum cudaDataType_t : int {
  CUDA_R_32F = 0,
  CUDA_R_16F = 2,
  CUDA_R_16BF = 14,
  CUDA_R_8F_E4M3 = 28,
  CUDA_R_8F_E5M2 = 29,
};

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);

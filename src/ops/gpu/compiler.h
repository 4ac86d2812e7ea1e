// The only file that knows its compiler: nvcc, hipcc, or a C++ compiler for the emulation in
// tests/gpu_kernels/emulation (MEGALITH_GPU_EMULATION). For gpu.cu files.
//
// Kernels also use what all three know: __global__, __device__, threadIdx, blockIdx, blockDim, gridDim,
// __syncthreads(), atomicAdd() and atomicMax() on integers. Blocks have one dim, a multiple of 64 threads where lanes
// exchange values: waves have 32 lanes on NVIDIA, 64 on AMD's CDNA.
#pragma once

#if defined(MEGALITH_GPU_EMULATION)
#include <gpu_kernels/emulation/machine.h>
#elif defined(__HIPCC__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace megalith::ops::gpu {

// MEGALITH_SHARED(type, name, count)       an array of the block's shared memory, aligned to 16 bytes
// MEGALITH_DYNAMIC_SHARED(type, name)      the array whose bytes the launch names; at most one per kernel
// MEGALITH_UNROLL, MEGALITH_UNROLL_BY(8)   before a loop: arrays indexed by it become registers, loads go together
#if defined(MEGALITH_GPU_EMULATION)

using Stream = void*;
using gpu_emulation::check_alignment;
using gpu_emulation::shuffle;
using gpu_emulation::shuffle_xor;
using gpu_emulation::vote;
using gpu_emulation::wave_size;

#define MEGALITH_SHARED(type, name, count) \
  static char name##_declaration;          \
  type* const name =                       \
      static_cast<type*>(::megalith::gpu_emulation::shared_array(&name##_declaration, sizeof(type) * (count)))
#define MEGALITH_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::megalith::gpu_emulation::dynamic_shared())
#define MEGALITH_UNROLL
#define MEGALITH_UNROLL_BY(count)

template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Stream /*stream*/, std::type_identity_t<Parameters>... arguments) {
  gpu_emulation::run(name, grid, block, shared_bytes, [=] { kernel(arguments...); });
}

#else

#define MEGALITH_SHARED(type, name, count) alignas(16) __shared__ type name[count]
#define MEGALITH_DYNAMIC_SHARED(type, name)                            \
  alignas(16) extern __shared__ unsigned char megalith_shared_bytes[]; \
  type* const name = reinterpret_cast<type*>(megalith_shared_bytes)
#define MEGALITH_UNROLL _Pragma("unroll")
#define MEGALITH_PRAGMA(text) _Pragma(#text)
#define MEGALITH_UNROLL_BY(count) MEGALITH_PRAGMA(unroll count)

// Chips check it themselves.
__device__ inline void check_alignment(const void* /*address*/, size_t /*bytes*/) {}

#if defined(__HIPCC__)

using Stream = hipStream_t;

__device__ inline int wave_size() { return warpSize; }
template <typename T>
__device__ T shuffle_xor(T value, int mask) {
  return __shfl_xor(value, mask);
}
template <typename T>
__device__ T shuffle(T value, int source_lane) {
  return __shfl(value, source_lane);
}
__device__ inline uint64_t vote(bool predicate) { return __ballot(predicate); }

inline const char* last_error() {
  const hipError_t error = hipGetLastError();
  return error == hipSuccess ? nullptr : hipGetErrorString(error);
}
inline void allow_shared_bytes(const void* /*kernel*/, size_t /*bytes*/) {}

#else

using Stream = cudaStream_t;

__device__ constexpr int wave_size() { return 32; }
template <typename T>
__device__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
template <typename T>
__device__ T shuffle(T value, int source_lane) {
  return __shfl_sync(0xFFFFFFFFu, value, source_lane);
}
__device__ inline uint64_t vote(bool predicate) { return __ballot_sync(0xFFFFFFFFu, predicate); }

inline const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
// More than 48 KiB must be requested; the launch refuses what the chip lacks.
inline void allow_shared_bytes(const void* kernel, size_t bytes) {
  if (bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  }
}

#endif

// Every launch of the program. Throws with `name` if the device refuses it; torch sees errors inside the kernel later.
template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
            std::type_identity_t<Parameters>... arguments) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
  if (const char* error = last_error()) throw std::runtime_error(std::string(name) + ": " + error);
}

#endif

// All of a wave's lanes must call shuffles and votes. wave_size() is this chip's; bounds for any:
inline constexpr int kMostThreads = 1024;
inline constexpr int kMostWaves = kMostThreads / 32;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % wave_size(); }
__device__ inline int wave() { return static_cast<int>(threadIdx.x) / wave_size(); }

}  // namespace megalith::ops::gpu

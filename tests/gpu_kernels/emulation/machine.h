// A GPU's threads on one processor thread, for gpu.cu files compiled as C++ (MEGALITH_GPU_EMULATION).
// ops/gpu/compiler.h includes this file instead of a vendor's.
//
// Each thread of a block is a fiber. A block's fibers run in turns from barrier to barrier, one block after another;
// lanes of a wave meet where they exchange values. Shared memory starts as NaN. A kernel that a chip would not run as
// written is refused: threads that end while others wait, different barriers in one block, exchanges without all lanes
// of a wave, wide accesses that are not aligned, launches beyond what chips allow.
//
// Every host thread that launches has fibers of its own, so several may.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace megalith::gpu_emulation {

struct Settings {
  int wave_size = 32;               // 64 for AMD's CDNA
  uint64_t order_seed = 0;          // blocks and threads run in this permutation; 0: in the order of their numbers
  size_t num_unordered_blocks = 3;  // so many blocks in a row are at once, to ThreadSanitizer
};
// For launches that begin from now on, in any thread.
void set_settings(const Settings& settings);
Settings settings();

// A launch, or what a kernel did, that a chip does not allow. The message names the kernel and the lines.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The sanitizer that watches the kernels. Any one run shows ThreadSanitizer every order of two threads, slowly.
enum class Sanitizer { kNone, kAddress, kThread };
Sanitizer sanitizer();

// Runs `thread` once for each thread of the grid; returns when all have ended.
void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// From now on `run` runs the launches, each at least once; without it, run() does where it is called. A launch that is
// run again finds the arguments that it was given.
void run_launches_through(void (*run)(const std::function<void()>& launch));

// The rest is for kernels, which means: for the fibers.

struct Place {
  dim3 thread, block, block_dim, grid_dim;
};
const Place& place();
int wave_size();

using Line = std::source_location;
void sync_block(Line line = Line::current());

// The block's array of a declaration: made when the first thread comes there, all bits set.
void* shared_array(const void* declaration, size_t bytes);
void* dynamic_shared();

void check_alignment(const void* address, size_t bytes);

enum class ExchangeKind { kShuffle, kVote };
// The wave meets: each lane gives a word and reads that of another; or, in a vote, the bits of all words that are not
// 0.
uint64_t exchange(ExchangeKind kind, uint64_t word, int source_lane, Line line);
int current_lane();

template <typename T>
T shuffle(T value, int source_lane, Line line = Line::current()) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof(T));
  word = exchange(ExchangeKind::kShuffle, word, source_lane, line);
  __builtin_memcpy(&value, &word, sizeof(T));
  return value;
}
template <typename T>
T shuffle_xor(T value, int mask, Line line = Line::current()) {
  return gpu_emulation::shuffle(value, current_lane() ^ mask, line);
}
inline uint64_t vote(bool predicate, Line line = Line::current()) {
  return exchange(ExchangeKind::kVote, predicate, 0, line);
}

}  // namespace megalith::gpu_emulation

// The words of kernels.

#define threadIdx (::megalith::gpu_emulation::place().thread)
#define blockIdx (::megalith::gpu_emulation::place().block)
#define blockDim (::megalith::gpu_emulation::place().block_dim)
#define gridDim (::megalith::gpu_emulation::place().grid_dim)

inline void __syncthreads(std::source_location line = std::source_location::current()) {
  ::megalith::gpu_emulation::sync_block(line);
}

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "the order of floating-point additions would show in the result");
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (seen < value &&
         !__atomic_compare_exchange_n(address, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}

struct __half {
  _Float16 value;
};
inline float __half2float(__half value) { return static_cast<float>(value.value); }
inline __half __float2half(float value) { return {static_cast<_Float16>(value)}; }
inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
using std::erfc;
using std::exp;
using std::sqrt;
// The chips' quick forms, with the numbers that the quotient does not reach.
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float x, float y) { return std::abs(y) > 0x1p126f && std::isfinite(x) ? x * 0 : x / y; }

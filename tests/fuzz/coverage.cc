// The hook that -fsanitize-coverage=trace-pc calls in every basic block; this file is compiled without it.
#include "fuzz/coverage.h"

#include <algorithm>
#include <array>
#include <cstring>

// AddressSanitizer's, of sanitizer/allocator_interface.h, which GCC comes without.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_allocation)(const volatile void*, size_t),
                                                         void (*on_release)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* memory);

namespace megalith::fuzz {
namespace {

constexpr size_t kNumPlaces = size_t{1} << 18;
// Written by every thread without order: a lost write costs an input that might have been kept.
std::array<uint8_t, kNumPlaces> reached;

int64_t num_blocks = 0, live_bytes = 0, most_bytes = 0;

void on_allocation(const volatile void*, size_t size) {
  live_bytes += static_cast<int64_t>(size);
  most_bytes = std::max(most_bytes, live_bytes);
}
void on_release(const volatile void* memory) {
  live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
}

}  // namespace

Coverage::Coverage() : seen_(kNumPlaces, 0) { reached.fill(0); }

size_t Coverage::take_new() {
  size_t num_new = 0;
  for (size_t begin = 0; begin < kNumPlaces; begin += sizeof(uint64_t)) {
    uint64_t eight = 0;
    std::memcpy(&eight, &reached[begin], sizeof(eight));
    if (eight == 0) continue;
    for (size_t i = begin; i < begin + sizeof(eight); ++i) {
      if (reached[i] == 0) continue;
      reached[i] = 0;
      num_new += seen_[i] == 0;
      seen_[i] = 1;
    }
  }
  num_places_ += num_new;
  return num_new;
}

void begin_cost() {
  static const int are_there = __sanitizer_install_malloc_and_free_hooks(on_allocation, on_release);
  static_cast<void>(are_there);
  num_blocks = live_bytes = most_bytes = 0;
}

Cost cost_so_far() { return {num_blocks, most_bytes}; }

}  // namespace megalith::fuzz

extern "C" void __sanitizer_cov_trace_pc() {
  // Relative to this function: addresses differ from run to run.
  const auto place =
      reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - reinterpret_cast<uintptr_t>(&__sanitizer_cov_trace_pc);
  ++megalith::fuzz::num_blocks;
  megalith::fuzz::reached[(place ^ place >> 18) % megalith::fuzz::kNumPlaces] = 1;
}

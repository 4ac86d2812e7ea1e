// The hook that -fsanitize-coverage=trace-pc calls in every basic block; this file is compiled without it.
#include "fuzz/coverage.h"

#include <array>
#include <cstring>

namespace megalith::fuzz {
namespace {

constexpr size_t kNumPlaces = size_t{1} << 18;
// Written by every thread without order: a lost write costs an input that might have been kept.
std::array<uint8_t, kNumPlaces> reached;

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

}  // namespace megalith::fuzz

extern "C" void __sanitizer_cov_trace_pc() {
  // Relative to this function: addresses differ from run to run.
  const auto place =
      reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - reinterpret_cast<uintptr_t>(&__sanitizer_cov_trace_pc);
  megalith::fuzz::reached[(place ^ place >> 18) % megalith::fuzz::kNumPlaces] = 1;
}

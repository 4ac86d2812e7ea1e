// A random order of n things, each place computed by itself: no memory, no replay on resume.
//
// A balanced Feistel network keyed by Philox, over the least even number of bits for n - 1; results outside n are
// permuted again (under four times on average). Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite
// Domains", cycle walking.
#pragma once

#include <bit>
#include <cstdint>

#include "core/philox.h"

namespace megalith {

//   key     make_philox_key(seed, name of the things)
//   stream  of the order, such as the pass; below 2^56
//   place   0 … n - 1
//   returns 0 … n - 1, distinct for each place
constexpr int64_t permuted(uint64_t key, uint64_t stream, int64_t place, int64_t n) {
  constexpr uint64_t kRounds = 8;
  const int half = (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto value = static_cast<uint64_t>(place);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = philox(key, {right, (stream << 8) | round})[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(value);
}

}  // namespace megalith

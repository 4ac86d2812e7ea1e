// Philox4x32-10 (core/philox.h) over an array of counters, for compilers to vectorise.
#pragma once

#include <cstdint>

namespace megalith::ops::cpu::CPU_CAPABILITY {

// words[w][i] = word w of the block with counter (low[i], high[i]).
template <int kCount>
inline void philox_lanes(uint64_t key, const uint64_t* low, const uint64_t* high, uint32_t (&words)[4][kCount]) {
#pragma omp simd
  for (int i = 0; i < kCount; ++i) {
    // 32-bit words in 64-bit lanes, for the products.
    uint64_t c0 = low[i] & 0xFFFFFFFF, c1 = low[i] >> 32, c2 = high[i] & 0xFFFFFFFF, c3 = high[i] >> 32;
    uint64_t k0 = key & 0xFFFFFFFF, k1 = key >> 32;
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = 0xD2511F53ull * c0, product1 = 0xCD9E8D57ull * c2;
      c0 = (product1 >> 32) ^ c1 ^ k0;
      c1 = product1 & 0xFFFFFFFF;
      c2 = (product0 >> 32) ^ c3 ^ k1;
      c3 = product0 & 0xFFFFFFFF;
      k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF;
      k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF;
    }
    words[0][i] = static_cast<uint32_t>(c0);
    words[1][i] = static_cast<uint32_t>(c1);
    words[2][i] = static_cast<uint32_t>(c2);
    words[3][i] = static_cast<uint32_t>(c3);
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

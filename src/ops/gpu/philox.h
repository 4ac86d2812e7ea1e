// Philox4x32-10 (core/philox.h) for kernels.
#pragma once

#include "ops/gpu/compiler.h"

namespace megalith::ops::gpu {

struct PhiloxWords {
  uint32_t words[4];
};

__device__ inline PhiloxWords philox_words(uint64_t key, uint64_t low, uint64_t high) {
  auto c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
  auto c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  MEGALITH_UNROLL
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0, product1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace megalith::ops::gpu

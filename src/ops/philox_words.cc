// Words are an int64's low half; products wrap.
#include "ops/philox_words.h"

#include <ATen/ATen.h>

namespace megalith::ops::reference {

namespace {

constexpr int64_t kLowHalf = 0xFFFFFFFF;

at::Tensor low_half(const at::Tensor& x) { return x.bitwise_and(kLowHalf); }
at::Tensor high_half(const at::Tensor& x) { return x.bitwise_right_shift(32).bitwise_and_(kLowHalf); }

}  // namespace

at::Tensor philox_words(uint64_t key, const at::Tensor& low, const at::Tensor& high, const at::Tensor& lane) {
  at::Tensor c0 = low_half(low), c1 = high_half(low), c2 = low_half(high), c3 = high_half(high);
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor product0 = c0 * int64_t{0xD2511F53}, product1 = c2 * int64_t{0xCD9E8D57};
    c0 = high_half(product1).bitwise_xor(c1).bitwise_xor(static_cast<int64_t>(k0));
    c1 = low_half(product1);
    c2 = high_half(product0).bitwise_xor(c3).bitwise_xor(static_cast<int64_t>(k1));
    c3 = low_half(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return at::where(lane == 0, c0, at::where(lane == 1, c1, at::where(lane == 2, c2, c3)));
}

}  // namespace megalith::ops::reference

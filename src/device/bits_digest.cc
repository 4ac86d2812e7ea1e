#include "device/bits_digest.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/checksum.h"

namespace megalith {
namespace {

constexpr int64_t kWordsAtOnce = int64_t{1} << 22;  // 128 MiB in four int64 tensors
// Odd: products lose nothing modulo 2^64. Source: splitmix64 (Steele et al. 2014).
constexpr auto kStride = static_cast<int64_t>(0x9E3779B97F4A7C15u);
constexpr auto kFactor = static_cast<int64_t>(0xBF58476D1CE4E5B9u);
constexpr int64_t kShift = 31;

at::Tensor words_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().reshape({-1});
  const bool has_words = flat.nbytes() % sizeof(int32_t) == 0 && flat.storage_offset() * flat.itemsize() % 4 == 0;
  return flat.view(has_words ? at::kInt : at::kByte);
}

}  // namespace

at::Tensor summed_digest(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return at::zeros({}, at::kLong);
  const at::Tensor words = words_of(tensor);
  at::Tensor sum = at::zeros({}, words.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < words.numel(); begin += kWordsAtOnce) {
    const int64_t count = std::min(kWordsAtOnce, words.numel() - begin);
    at::Tensor mixed = at::arange(begin, begin + count, words.options().dtype(at::kLong)).mul_(kStride);
    mixed.bitwise_xor_(words.narrow(0, begin, count).to(at::kLong)).mul_(kFactor);
    sum.add_(mixed.bitwise_xor_(mixed.bitwise_right_shift(kShift)).sum());
  }
  return sum;
}

at::Tensor bits_digest(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return summed_digest(tensor);
  const at::Tensor whole = tensor.detach().contiguous();
  const auto bytes = std::span(static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes());
  return at::full({}, static_cast<int64_t>(checksum64(bytes)), at::kLong);
}

}  // namespace megalith

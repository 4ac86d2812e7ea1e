// An array of a dtype in plain memory, as a kernel gets it, read and written as doubles.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "ops/dtype.h"

namespace megalith::testing {

inline size_t bytes_of(ops::Dtype dtype) {
  switch (dtype) {
    case ops::Dtype::kFloat64:
      return 8;
    case ops::Dtype::kFloat32:
      return 4;
    default:
      return 2;
  }
}
inline const char* name_of(ops::Dtype dtype) {
  switch (dtype) {
    case ops::Dtype::kFloat64:
      return "float64";
    case ops::Dtype::kFloat32:
      return "float32";
    case ops::Dtype::kBFloat16:
      return "bfloat16";
    default:
      return "float16";
  }
}
// The most by which rounding to this dtype changes a number, as a part of it.
inline double unit_of(ops::Dtype dtype) {
  switch (dtype) {
    case ops::Dtype::kFloat64:
      return 0x1p-53;
    case ops::Dtype::kFloat32:
      return 0x1p-24;
    case ops::Dtype::kBFloat16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}
// float16 has no more digits below 2^-14: the most by which rounding changes such a number.
inline double smallest_step_of(ops::Dtype dtype) { return dtype == ops::Dtype::kFloat16 ? 0x1p-25 : 0; }
// The dtype that kernels compute in.
inline ops::Dtype wide_of(ops::Dtype dtype) {
  return dtype == ops::Dtype::kFloat64 ? ops::Dtype::kFloat64 : ops::Dtype::kFloat32;
}

class Array {
 public:
  // All elements NaN. The memory ends with the last one, so AddressSanitizer sees an access beyond it. It begins
  // `shift` elements after a multiple of 16 bytes.
  Array(ops::Dtype dtype, int64_t count, int64_t shift = 0)
      : dtype_(dtype),
        count_(count),
        shift_bytes_(static_cast<size_t>(shift) * bytes_of(dtype)),
        memory_(static_cast<char*>(std::malloc(shift_bytes_ + bytes() + (count == 0))), &std::free) {
    std::memset(data(), 0xFF, bytes());
  }

  void* data() { return memory_.get() + shift_bytes_; }
  const void* data() const { return memory_.get() + shift_bytes_; }
  int64_t count() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * bytes_of(dtype_); }
  ops::Dtype dtype() const { return dtype_; }

  double operator[](int64_t i) const {
    switch (dtype_) {
      case ops::Dtype::kFloat64:
        return static_cast<const double*>(data())[i];
      case ops::Dtype::kFloat32:
        return static_cast<const float*>(data())[i];
      case ops::Dtype::kBFloat16:
        return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data())[i]} << 16);
      default:
        return static_cast<const _Float16*>(data())[i];
    }
  }
  void set(int64_t i, double value) {
    switch (dtype_) {
      case ops::Dtype::kFloat64:
        static_cast<double*>(data())[i] = value;
        break;
      case ops::Dtype::kFloat32:
        static_cast<float*>(data())[i] = static_cast<float>(value);
        break;
      case ops::Dtype::kBFloat16:
        // Cut off: any bfloat16 will do.
        static_cast<uint16_t*>(data())[i] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
        break;
      default:
        static_cast<_Float16*>(data())[i] = static_cast<_Float16>(value);
    }
  }
  // Normally distributed about `mean`.
  void draw(std::mt19937& generator, double mean, double spread) {
    std::normal_distribution<double> distribution(mean, spread);
    for (int64_t i = 0; i < count_; ++i) set(i, distribution(generator));
  }
  bool has_bits_of(const Array& other) const {
    return bytes() == other.bytes() && std::memcmp(data(), other.data(), bytes()) == 0;
  }

 private:
  ops::Dtype dtype_;
  int64_t count_;
  size_t shift_bytes_;
  std::unique_ptr<char, decltype(&std::free)> memory_;
};

}  // namespace megalith::testing

// Sums in double over sixteen lanes, whatever the registers: squares of floats are exact, so every processor gives the
// same bits for bf16, fp16 and fp32.
#include <ATen/Parallel.h>

#include <cstring>

#include "ops/cpu/lanes.h"
#include "ops/grad_norm/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t kHalf = 8;
using Doubles = double __attribute__((vector_size(kHalf * sizeof(double))));
using Floats = float __attribute__((vector_size(kHalf * sizeof(float))));
using Words = uint32_t __attribute__((vector_size(kHalf * sizeof(uint32_t))));
using HalfWords = uint16_t __attribute__((vector_size(kHalf * sizeof(uint16_t))));

template <typename T>
inline void add_squares(const T* p, Doubles& sum) {
  Doubles values;
  if constexpr (std::is_same_v<T, double>) {
    std::memcpy(&values, p, sizeof(values));
  } else if constexpr (std::is_same_v<T, float>) {
    Floats floats;
    std::memcpy(&floats, p, sizeof(floats));
    values = __builtin_convertvector(floats, Doubles);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    HalfWords bits;
    std::memcpy(&bits, p, sizeof(bits));
    const Words words = __builtin_convertvector(bits, Words) << 16;  // bf16 is a float's upper half
    Floats floats;
    std::memcpy(&floats, &words, sizeof(floats));
    values = __builtin_convertvector(floats, Doubles);
  } else {
    for (int64_t i = 0; i < kHalf; ++i) values[i] = static_cast<float>(p[i]);
  }
  sum += values * values;
}

template <typename T>
double sum_of_squares(const T* p, int64_t count) {
  Doubles even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kHalf <= count; i += 2 * kHalf) {
    add_squares(p + i, even);
    add_squares(p + i + kHalf, odd);
  }
  even += odd;
  double sum = ((even[0] + even[4]) + (even[1] + even[5])) + ((even[2] + even[6]) + (even[3] + even[7]));
  for (; i < count; ++i) {
    const auto value = static_cast<double>(static_cast<Wide<T>>(p[i]));
    sum += value * value;
  }
  return sum;
}

}  // namespace

void squared_sums(const SquaredPiece* pieces, int64_t num_pieces, double* sums) {
  at::parallel_for(0, num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      with_type(pieces[i].dtype, [&](auto zero) {
        sums[i] = sum_of_squares(static_cast<const decltype(zero)*>(pieces[i].values), pieces[i].count);
      });
    }
  });
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY

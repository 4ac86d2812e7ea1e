// Claims about what kernels wrote, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu_kernels/array.h"
#include "gpu_kernels/emulation/machine.h"

namespace megalith::testing {

// ThreadSanitizer has time for few cases; planted mistakes need few.
inline bool is_thorough() {
  return gpu_emulation::sanitizer() != gpu_emulation::Sanitizer::kThread &&
         std::getenv("MEGALITH_FEW_CASES") == nullptr;
}

inline std::vector<ops::Dtype> dtypes(int64_t columns = 1) {
  if (columns > 8192) return {ops::Dtype::kBFloat16};  // slow
  if (!is_thorough()) return {ops::Dtype::kBFloat16, ops::Dtype::kFloat32};
  return {ops::Dtype::kBFloat16, ops::Dtype::kFloat16, ops::Dtype::kFloat32, ops::Dtype::kFloat64};
}

// An element with what it must be and how far off it may be.
struct Expected {
  double value = 0, bound = 0;
};

inline void expect_near(const Array& found, const std::vector<Expected>& expected, const std::string& what) {
  ASSERT_EQ(found.count(), static_cast<int64_t>(expected.size())) << what;
  for (int64_t i = 0; i < found.count(); ++i) {
    const auto [value, bound] = expected[static_cast<size_t>(i)];
    // A NaN is not within any bound.
    ASSERT_TRUE(std::abs(found[i] - value) <= bound)
        << what << "[" << i << "] is " << found[i] << " instead of " << value << ", by more than " << bound;
  }
}

// Calls run() for both widths of waves and several orders of blocks and threads. Its result, a vector of arrays, must
// be the same to the bit in every order, and pass check().
template <typename Run, typename Check>
void in_every_order(const std::string& what, Run&& run, Check&& check) {
  for (const int wave_size : {32, 64}) {
    std::vector<Array> first;
    // With a sanitizer one order, in which others than the first blocks and threads come first.
    const bool has_sanitizer = gpu_emulation::sanitizer() != gpu_emulation::Sanitizer::kNone;
    for (const uint64_t seed : has_sanitizer ? std::vector<uint64_t>{1} : std::vector<uint64_t>{0, 1, 2}) {
      SCOPED_TRACE(what + ", waves of " + std::to_string(wave_size) + ", order " + std::to_string(seed));
      gpu_emulation::set_settings({.wave_size = wave_size, .order_seed = seed});
      std::vector<Array> results = run();
      if (first.empty()) {
        check(results);
        first = std::move(results);
      } else {
        for (size_t i = 0; i < results.size(); ++i) ASSERT_TRUE(results[i].has_bits_of(first[i])) << "result " << i;
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace megalith::testing

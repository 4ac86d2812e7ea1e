#include "train/product_speed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/time.h"
#include "ops/linear/linear.h"

namespace megalith {
namespace {

double speed_of(int64_t size, at::ScalarType dtype, int rounds) {
  const at::Tensor a = at::ones({size, size}, dtype);
  ops::linear_forward(a, a);  // first calls initialise libraries
  double best_s = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    ops::linear_forward(a, a);
    best_s = std::min(best_s, watch.elapsed_s());
  }
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / std::max(best_s, 1e-9);
}

}  // namespace

double measure_products(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  // Larger products would take too long with an emulated dtype.
  constexpr double kSlow = 20e9;
  const double speed = speed_of(128, dtype, 2);
  return speed < kSlow ? speed : speed_of(512, dtype, 3);
}

}  // namespace megalith

// swiglu's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include "gpu_kernels/activations.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;

const testing::GatedKernels kSwigluKernels = {
    .forward =
        [](Dtype dtype, int64_t rows, int64_t columns, const void* gate_up, void* y) {
          gpu::swiglu({dtype, rows, columns, gate_up, y}, nullptr);
        },
    .backward =
        [](Dtype dtype, int64_t rows, int64_t columns, const void* dy, const void* gate_up, void* dgate_up) {
          gpu::swiglu_backward({dtype, rows, columns, dy, gate_up, dgate_up}, nullptr);
        },
};

TEST(SwigluKernels, EqualLoopsInDoubleInEveryOrder) {
  testing::try_gated_everywhere("swiglu", testing::kSilu, kSwigluKernels);
}

// 88 is where the quick quotient gives 0 instead of a small number, 89 where the exponential overflows.
const std::vector<double> kLargeGates = {-1e30, -1e4, -89, -88, -80, 80, 88, 89, 1e4, 1e30};

TEST(SwigluKernels, LargeGatesNeitherOverflowNorTurnIntoNan) {
  gpu_emulation::set_settings({});
  const auto count = static_cast<int64_t>(kLargeGates.size());
  for (const Dtype dtype : testing::dtypes()) {
    if (dtype == Dtype::kFloat16) continue;  // ends at 65504
    Array gate_up(dtype, 2 * count), dy(dtype, count), y(dtype, count), dgate_up(dtype, 2 * count);
    std::vector<testing::Expected> expected_y, expected_gradient(static_cast<size_t>(2 * count));
    for (int64_t i = 0; i < count; ++i) {
      gate_up.set(i, kLargeGates[static_cast<size_t>(i)]);
      gate_up.set(count + i, 2);
      dy.set(i, 1);
      // 0 below (1e-33 at -80), the gate itself above.
      const double positive = std::max(gate_up[i], 0.0);
      expected_y.push_back({2 * positive, 1e-30 + 1e-6 * positive});
      expected_gradient[static_cast<size_t>(i)] = {positive > 0 ? 2.0 : 0.0, 1e-6};
      expected_gradient[static_cast<size_t>(count + i)] = {positive, 1e-30 + 1e-6 * positive};
    }
    kSwigluKernels.forward(dtype, 1, count, gate_up.data(), y.data());
    kSwigluKernels.backward(dtype, 1, count, dy.data(), gate_up.data(), dgate_up.data());
    testing::expect_near(y, expected_y, "y");
    testing::expect_near(dgate_up, expected_gradient, "dgate_up");
  }
}

}  // namespace
}  // namespace megalith::ops

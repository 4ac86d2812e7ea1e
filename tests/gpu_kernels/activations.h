// Activations and gated activations in double, for the tests of their kernels.
#pragma once

#include <functional>
#include <utility>

#include "gpu_kernels/expect.h"
#include "gpu_kernels/rounded.h"

namespace megalith::testing {

struct Activation {
  double (*value)(double x);
  double (*slope)(double x);
};

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }
inline double normal_below(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
inline double tanh_argument(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

inline constexpr Activation kSilu = {
    [](double x) { return x * logistic(x); },
    [](double x) { return logistic(x) * (1 + x * (1 - logistic(x))); },
};
inline constexpr Activation kErfGelu = {
    [](double x) { return x * normal_below(x); },
    [](double x) { return normal_below(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); },
};
inline constexpr Activation kTanhGelu = {
    [](double x) { return x / 2 * (1 + std::tanh(tanh_argument(x))); },
    [](double x) {
      const double tanh = std::tanh(tanh_argument(x));
      return (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    },
};
inline constexpr Activation kSquaredRelu = {
    [](double x) { return x > 0 ? x * x : 0; },
    [](double x) { return x > 0 ? 2 * x : 0; },
};

// By how much arithmetic in float, or double, may be off, as a part of numbers of order 10: the exponential of 16 bits
// has an error of 2^-24 times its argument, up to 60 here; the probability of 16 bits is good to 8e-8.
inline double activation_error(ops::Dtype dtype) { return dtype == ops::Dtype::kFloat64 ? 1e-13 : 6e-6; }

// One element; a prime; a vector a row, with rows for two blocks; vectors and tails; a row of more than one block;
// nothing.
inline std::vector<std::pair<int64_t, int64_t>> elementwise_shapes() {
  if (!is_thorough()) return {{3, 7}, {5, 48}, {2, 2056}};
  return {{1, 1}, {3, 7}, {300, 8}, {5, 131}, {67, 48}, {2, 2056}, {0, 8}, {4, 0}};
}

struct GatedKernels {
  std::function<void(ops::Dtype, int64_t rows, int64_t columns, const void* gate_up, void* y)> forward;
  std::function<void(ops::Dtype, int64_t rows, int64_t columns, const void* dy, const void* gate_up, void* dgate_up)>
      backward;
};

// A value with an error, rounded, times factors, rounded again: one number, or near a tie one of two neighbours.
inline Expected twice_rounded(ops::Dtype dtype, double value, double error, double factor, double weight = 1) {
  const auto result_of = [&](double act) {
    const ops::Dtype wide = wide_of(dtype);
    return rounded(dtype, rounded(wide, rounded(wide, rounded(dtype, act) * factor) * weight));
  };
  const double low = result_of(value - error), high = result_of(value + error);
  return {(low + high) / 2, std::abs(high - low) / 2};
}

// y = round(activation(gate)) up, dgate = dy up slope, dup = dy round(activation(gate)).
inline void check_gated(const Activation& activation, int64_t rows, int64_t columns, const Array& gate_up,
                        const Array& dy, const std::vector<Array>& results) {
  const ops::Dtype dtype = gate_up.dtype();
  const double unit = unit_of(dtype), step = smallest_step_of(dtype), wide = activation_error(dtype);
  std::vector<Expected> y, gradients(static_cast<size_t>(2 * rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t place = row * 2 * columns + column;
      const double gate = gate_up[place], up = gate_up[place + columns], grad = dy[row * columns + column];
      const double value = activation.value(gate), slope = activation.slope(gate);
      const auto product = [&](double factor) {
        if (wide_of(dtype) != dtype) return twice_rounded(dtype, value, wide * (std::abs(value) + 1), factor);
        return Expected{value * factor, (2.1 * unit + wide) * std::abs(value * factor) + wide * std::abs(factor) +
                                            step * (1 + std::abs(factor))};
      };
      y.push_back(product(up));
      gradients[static_cast<size_t>(place + columns)] = product(grad);
      // The slope is a sum in which terms of order one may cancel.
      gradients[static_cast<size_t>(place)] = {
          grad * up * slope, unit * std::abs(grad * up * slope) + 2 * wide * std::abs(grad * up) + step};
    }
  }
  expect_near(results[0], y, "y");
  expect_near(results[1], gradients, "dgate_up");
}

inline void try_gated(const std::string& name, const Activation& activation, const GatedKernels& kernels,
                      ops::Dtype dtype, int64_t rows, int64_t columns, int64_t shift) {
  Array gate_up(dtype, 2 * rows * columns, shift), dy(dtype, rows * columns, shift);
  std::mt19937 generator(static_cast<unsigned>(rows * 1000 + columns));
  gate_up.draw(generator, 0, 3);
  dy.draw(generator, 0, 1);
  const auto run = [&] {
    std::vector<Array> results;
    results.emplace_back(dtype, rows * columns, shift);
    results.emplace_back(dtype, 2 * rows * columns, shift);
    kernels.forward(dtype, rows, columns, gate_up.data(), results[0].data());
    kernels.backward(dtype, rows, columns, dy.data(), gate_up.data(), results[1].data());
    return results;
  };
  in_every_order(
      name + " (" + std::to_string(rows) + ", " + std::to_string(columns) + ") " + name_of(dtype) +
          (shift != 0 ? " not aligned" : ""),
      run, [&](const std::vector<Array>& results) { check_gated(activation, rows, columns, gate_up, dy, results); });
}

inline void try_gated_everywhere(const std::string& name, const Activation& activation, const GatedKernels& kernels) {
  for (const ops::Dtype dtype : dtypes()) {
    for (const auto& [rows, columns] : elementwise_shapes()) {
      try_gated(name, activation, kernels, dtype, rows, columns, /*shift=*/0);
      if (::testing::Test::HasFatalFailure()) return;
    }
    try_gated(name, activation, kernels, dtype, 3, 16, /*shift=*/1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace megalith::testing

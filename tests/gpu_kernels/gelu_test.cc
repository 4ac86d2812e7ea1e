// gelu's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include "gpu_kernels/activations.h"
#include "ops/gelu/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct BiasActivationKernels {
  const char* name;
  testing::Activation activation;
  std::function<void(const BiasActivation&)> forward;
  std::function<void(const BiasActivationBackward&)> backward;
};

BiasActivationKernels gelu_kernels(const char* name, const testing::Activation& activation, GeluForm form) {
  return {name, activation,
          [form](const BiasActivation& a) {
            gpu::bias_gelu({a, form}, nullptr);
          },
          [form](const BiasActivationBackward& a) {
            gpu::bias_gelu_backward({a, form}, nullptr);
          }};
}
std::vector<BiasActivationKernels> bias_activation_kernels() {
  return {gelu_kernels("tanh", testing::kTanhGelu, GeluForm::kTanh),
          gelu_kernels("erf", testing::kErfGelu, GeluForm::kErf),
          gelu_kernels("quick", testing::kQuickGelu, GeluForm::kQuick),
          {"squared ReLU", testing::kSquaredRelu, [](const BiasActivation& a) { gpu::bias_squared_relu(a, nullptr); },
           [](const BiasActivationBackward& a) { gpu::bias_squared_relu_backward(a, nullptr); }}};
}

void try_bias_activation(const BiasActivationKernels& kernels, Dtype dtype, int64_t rows, int64_t columns,
                         bool has_bias, int64_t shift = 0) {
  Array x(dtype, rows * columns, shift), bias(dtype, columns, shift), dy(dtype, rows * columns, shift);
  std::mt19937 generator(static_cast<unsigned>(rows * 1000 + columns));
  x.draw(generator, 0, 3);
  bias.draw(generator, 0, 1);
  dy.draw(generator, 0, 1);
  const void* const bias_data = has_bias ? bias.data() : nullptr;
  const auto run = [&] {
    std::vector<Array> results;
    for (int i = 0; i < 2; ++i) results.emplace_back(dtype, rows * columns, shift);
    kernels.forward({dtype, rows, columns, x.data(), bias_data, results[0].data()});
    kernels.backward({dtype, rows, columns, dy.data(), x.data(), bias_data, results[1].data()});
    return results;
  };
  const double unit = testing::unit_of(dtype), step = testing::smallest_step_of(dtype);
  const auto check = [&](const std::vector<Array>& results) {
    std::vector<Expected> y, dx;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double sum = x[i] + (has_bias ? bias[i % columns] : 0);
      // One rounding; the sum is rounded in float, and met by a slope of up to 20.
      const double value = kernels.activation.value(sum), gradient = dy[i] * kernels.activation.slope(sum);
      const double wide = testing::activation_error(dtype);
      y.push_back({value, unit * std::abs(value) + wide * (1 + std::abs(value)) + step});
      dx.push_back({gradient, unit * std::abs(gradient) + wide * (std::abs(dy[i]) * 4 + std::abs(gradient)) + step});
    }
    testing::expect_near(results[0], y, "y");
    testing::expect_near(results[1], dx, "dx");
  };
  testing::in_every_order(std::string(kernels.name) + " (" + std::to_string(rows) + ", " + std::to_string(columns) +
                              ") " + testing::name_of(dtype) + (has_bias ? " with bias" : ""),
                          run, check);
}

TEST(BiasGeluKernels, EqualLoopsInDoubleInEveryOrder) {
  for (const BiasActivationKernels& kernels : bias_activation_kernels()) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const bool has_bias : {false, true}) {
        for (const auto& [rows, columns] : testing::elementwise_shapes()) {
          try_bias_activation(kernels, dtype, rows, columns, has_bias);
          if (HasFatalFailure()) return;
        }
        try_bias_activation(kernels, dtype, 3, 16, has_bias, /*shift=*/1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(BiasGeluKernels, LargeNumbersNeitherOverflowNorTurnIntoNan) {
  gpu_emulation::set_settings({});
  static const std::vector<double> numbers = {-1e30, -1e4, -200, -60, -52, -40, 40, 52, 60, 200, 1e4, 1e30};
  const auto count = static_cast<int64_t>(numbers.size());
  for (const BiasActivationKernels& kernels : bias_activation_kernels()) {
    if (std::string(kernels.name) == "squared ReLU") continue;  // 1e60 is too much
    for (const Dtype dtype : testing::dtypes()) {
      if (dtype == Dtype::kFloat16) continue;  // ends at 65504
      Array x(dtype, count), dy(dtype, count), y(dtype, count), dx(dtype, count);
      std::vector<Expected> expected_y, expected_dx;
      for (int64_t i = 0; i < count; ++i) {
        x.set(i, numbers[static_cast<size_t>(i)]);
        dy.set(i, 1);
        // 0 below (2e-28 for the quick form at -40), the number itself above.
        const double positive = std::max(x[i], 0.0);
        expected_y.push_back({positive, 1e-27 + 1e-6 * positive});
        expected_dx.push_back({positive > 0 ? 1.0 : 0.0, 1e-6});
      }
      kernels.forward({dtype, 1, count, x.data(), nullptr, y.data()});
      kernels.backward({dtype, 1, count, dy.data(), x.data(), nullptr, dx.data()});
      testing::expect_near(y, expected_y, std::string(kernels.name) + " y");
      testing::expect_near(dx, expected_dx, std::string(kernels.name) + " dx");
    }
  }
}

void expect_nan_stays(const BiasActivationKernels& kernels, Dtype dtype, int64_t count) {
  Array x(dtype, count), dy(dtype, count), y(dtype, count), dx(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    dy.set(i, 1);
    if (i != 3) x.set(i, 1);  // arrays begin as NaN
  }
  kernels.forward({dtype, 1, count, x.data(), nullptr, y.data()});
  kernels.backward({dtype, 1, count, dy.data(), x.data(), nullptr, dx.data()});
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::isnan(y[i]), i == 3) << kernels.name << " " << testing::name_of(dtype);
    ASSERT_EQ(std::isnan(dx[i]), i == 3) << kernels.name << " " << testing::name_of(dtype);
  }
}

TEST(BiasGeluKernels, ANanStays) {
  gpu_emulation::set_settings({});
  for (const BiasActivationKernels& kernels : bias_activation_kernels()) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const int64_t count : {5, 8}) expect_nan_stays(kernels, dtype, count);
    }
  }
}

TEST(GegluKernels, EqualLoopsInDoubleInEveryOrder) {
  const auto kernels_of = [](GeluForm form) {
    return testing::GatedKernels{
        .forward =
            [form](Dtype dtype, int64_t rows, int64_t columns, const void* gate_up, void* y) {
              gpu::geglu({dtype, form, rows, columns, gate_up, y}, nullptr);
            },
        .backward =
            [form](Dtype dtype, int64_t rows, int64_t columns, const void* dy, const void* gate_up, void* dgate_up) {
              gpu::geglu_backward({dtype, form, rows, columns, dy, gate_up, dgate_up}, nullptr);
            },
    };
  };
  testing::try_gated_everywhere("tanh", testing::kTanhGelu, kernels_of(GeluForm::kTanh));
  testing::try_gated_everywhere("erf", testing::kErfGelu, kernels_of(GeluForm::kErf));
  testing::try_gated_everywhere("quick", testing::kQuickGelu, kernels_of(GeluForm::kQuick));
}

}  // namespace
}  // namespace megalith::ops

// The activations' GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include "gpu_kernels/activations.h"
#include "ops/activation/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct PlainKernels {
  const char* name;
  testing::Activation activation;
  ActivationKind kind;

  void forward(Dtype dtype, int64_t rows, int64_t columns, const void* x, void* y) const {
    gpu::activation({dtype, kind, /*is_gated=*/false, rows, columns, x, y}, nullptr);
  }
  void backward(Dtype dtype, int64_t rows, int64_t columns, const void* dy, const void* x, void* dx) const {
    gpu::activation_backward({dtype, kind, /*is_gated=*/false, rows, columns, x, /*y=*/nullptr, dy, dx}, nullptr);
  }
};
constexpr PlainKernels kPlainKernels[] = {{"tanh", testing::kTanhGelu, ActivationKind::kGeluTanh},
                                          {"erf", testing::kErfGelu, ActivationKind::kGelu},
                                          {"squared ReLU", testing::kSquaredRelu, ActivationKind::kSquaredRelu}};

void try_activation(const PlainKernels& kernels, Dtype dtype, int64_t rows, int64_t columns, int64_t shift = 0) {
  Array x(dtype, rows * columns, shift), dy(dtype, rows * columns, shift);
  std::mt19937 generator(static_cast<unsigned>(rows * 1000 + columns));
  x.draw(generator, 0, 3);
  dy.draw(generator, 0, 1);
  const auto run = [&] {
    std::vector<Array> results;
    for (int i = 0; i < 2; ++i) results.emplace_back(dtype, rows * columns, shift);
    kernels.forward(dtype, rows, columns, x.data(), results[0].data());
    kernels.backward(dtype, rows, columns, dy.data(), x.data(), results[1].data());
    return results;
  };
  const double unit = testing::unit_of(dtype), step = testing::smallest_step_of(dtype);
  const auto check = [&](const std::vector<Array>& results) {
    std::vector<Expected> y, dx;
    for (int64_t i = 0; i < rows * columns; ++i) {
      // One rounding.
      const double value = kernels.activation.value(x[i]), gradient = dy[i] * kernels.activation.slope(x[i]);
      const double wide = testing::activation_error(dtype);
      y.push_back({value, unit * std::abs(value) + wide * (1 + std::abs(value)) + step});
      dx.push_back({gradient, unit * std::abs(gradient) + wide * (std::abs(dy[i]) * 4 + std::abs(gradient)) + step});
    }
    testing::expect_near(results[0], y, "y");
    testing::expect_near(results[1], dx, "dx");
  };
  testing::in_every_order(std::string(kernels.name) + " (" + std::to_string(rows) + ", " + std::to_string(columns) +
                              ") " + testing::name_of(dtype),
                          run, check);
}

TEST(ActivationKernels, EqualLoopsInDoubleInEveryOrder) {
  for (const PlainKernels& kernels : kPlainKernels) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const auto& [rows, columns] : testing::elementwise_shapes()) {
        try_activation(kernels, dtype, rows, columns);
        if (HasFatalFailure()) return;
      }
      try_activation(kernels, dtype, 3, 16, /*shift=*/1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ActivationKernels, LargeNumbersNeitherOverflowNorTurnIntoNan) {
  gpu_emulation::set_settings({});
  static const std::vector<double> numbers = {-1e30, -1e4, -200, -60, -52, -40, 40, 52, 60, 200, 1e4, 1e30};
  const auto count = static_cast<int64_t>(numbers.size());
  for (const PlainKernels& kernels : kPlainKernels) {
    if (std::string(kernels.name) == "squared ReLU") continue;  // 1e60 is too much
    for (const Dtype dtype : testing::dtypes()) {
      if (dtype == Dtype::kFloat16) continue;  // ends at 65504
      Array x(dtype, count), dy(dtype, count), y(dtype, count), dx(dtype, count);
      std::vector<Expected> expected_y, expected_dx;
      for (int64_t i = 0; i < count; ++i) {
        x.set(i, numbers[static_cast<size_t>(i)]);
        dy.set(i, 1);
        // 0 below, the number itself above.
        const double positive = std::max(x[i], 0.0);
        expected_y.push_back({positive, 1e-27 + 1e-6 * positive});
        expected_dx.push_back({positive > 0 ? 1.0 : 0.0, 1e-6});
      }
      kernels.forward(dtype, 1, count, x.data(), y.data());
      kernels.backward(dtype, 1, count, dy.data(), x.data(), dx.data());
      testing::expect_near(y, expected_y, std::string(kernels.name) + " y");
      testing::expect_near(dx, expected_dx, std::string(kernels.name) + " dx");
    }
  }
}

void expect_nan_stays(const PlainKernels& kernels, Dtype dtype, int64_t count) {
  Array x(dtype, count), dy(dtype, count), y(dtype, count), dx(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    dy.set(i, 1);
    if (i != 3) x.set(i, 1);  // arrays begin as NaN
  }
  kernels.forward(dtype, 1, count, x.data(), y.data());
  kernels.backward(dtype, 1, count, dy.data(), x.data(), dx.data());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::isnan(y[i]), i == 3) << kernels.name << " " << testing::name_of(dtype);
    ASSERT_EQ(std::isnan(dx[i]), i == 3) << kernels.name << " " << testing::name_of(dtype);
  }
}

TEST(ActivationKernels, ANanStays) {
  gpu_emulation::set_settings({});
  for (const PlainKernels& kernels : kPlainKernels) {
    for (const Dtype dtype : testing::dtypes()) {
      for (const int64_t count : {5, 8}) expect_nan_stays(kernels, dtype, count);
    }
  }
}

TEST(GatedGeluKernels, EqualLoopsInDoubleInEveryOrder) {
  const auto kernels_of = [](ActivationKind kind) {
    return testing::GatedKernels{
        .forward =
            [kind](Dtype dtype, int64_t rows, int64_t columns, const void* gate_up, void* y) {
              gpu::activation({dtype, kind, /*is_gated=*/true, rows, columns, gate_up, y}, nullptr);
            },
        .backward =
            [kind](Dtype dtype, int64_t rows, int64_t columns, const void* dy, const void* gate_up, void* dgate_up) {
              gpu::activation_backward(
                  {dtype, kind, /*is_gated=*/true, rows, columns, gate_up, /*y=*/nullptr, dy, dgate_up}, nullptr);
            },
    };
  };
  testing::try_gated_everywhere("tanh", testing::kTanhGelu, kernels_of(ActivationKind::kGeluTanh));
  testing::try_gated_everywhere("erf", testing::kErfGelu, kernels_of(ActivationKind::kGelu));
}

}  // namespace
}  // namespace megalith::ops

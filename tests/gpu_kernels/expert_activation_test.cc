// expert_activation's GPU kernels under emulation: against loops in double, equal to the bit in every order.
#include "gpu_kernels/activations.h"
#include "ops/expert_activation/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct ExpertActivationCase {
  ActivationKind kind;
  testing::Activation activation;
  bool is_gated, has_weights;
  Dtype dtype = Dtype::kBFloat16;
  int64_t rows = 1, columns = 1;
  int64_t shift = 0;  // of x, dy, y and dx, in elements

  std::string what() const {
    return "kind " + std::to_string(static_cast<int>(kind)) + (is_gated ? " gated" : "") +
           (has_weights ? " weights" : "") + " (" + std::to_string(rows) + ", " + std::to_string(columns) + ") " +
           testing::name_of(dtype);
  }
};

struct ExpertInputs {
  Array x, weights, dy;

  explicit ExpertInputs(const ExpertActivationCase& c)
      : x(c.dtype, c.rows * c.columns * (c.is_gated ? 2 : 1), c.shift),
        weights(testing::wide_of(c.dtype), c.rows),
        dy(c.dtype, c.rows * c.columns, c.shift) {
    std::mt19937 generator(static_cast<unsigned>(c.rows * 1000 + c.columns));
    x.draw(generator, 0, 3);
    weights.draw(generator, 0.5, 0.25);
    dy.draw(generator, 0, 1);
  }
};

// {y, dx, dweights}
std::vector<Array> run(const ExpertActivationCase& c, ExpertInputs& in) {
  std::vector<Array> results;
  results.emplace_back(c.dtype, c.rows * c.columns, c.shift);
  results.emplace_back(c.dtype, in.x.count(), c.shift);
  results.emplace_back(testing::wide_of(c.dtype), c.has_weights ? c.rows : 0);
  ExpertActivationCall call{.dtype = c.dtype,
                            .kind = c.kind,
                            .is_gated = c.is_gated,
                            .rows = c.rows,
                            .columns = c.columns,
                            .x = in.x.data(),
                            .weights = c.has_weights ? in.weights.data() : nullptr,
                            .y = results[0].data(),
                            .dy = nullptr,
                            .dx = nullptr,
                            .dweights = nullptr};
  gpu::expert_activation(call, nullptr);
  call.y = nullptr;
  call.dy = in.dy.data();
  call.dx = results[1].data();
  call.dweights = c.has_weights ? results[2].data() : nullptr;
  gpu::expert_activation_backward(call, nullptr);
  return results;
}

void check(const ExpertActivationCase& c, const ExpertInputs& in, const std::vector<Array>& results) {
  const double unit = testing::unit_of(c.dtype), step = testing::smallest_step_of(c.dtype);
  const double wide = testing::activation_error(c.dtype);
  std::vector<Expected> y, dx(static_cast<size_t>(in.x.count())), dweights;
  for (int64_t row = 0; row < c.rows; ++row) {
    const double weight = c.has_weights ? in.weights[row] : 1;
    Expected dweight;
    for (int64_t column = 0; column < c.columns; ++column) {
      const int64_t place = row * c.columns * (c.is_gated ? 2 : 1) + column;
      const double gate = in.x[place], grad = in.dy[row * c.columns + column];
      const double up = c.is_gated ? in.x[place + c.columns] : 1;
      const double value = c.activation.value(gate), slope = c.activation.slope(gate);
      // The result is rounded, and the activation before, where it is multiplied by `up`.
      const auto bound = [&](double factor) {
        return ((c.is_gated ? 2.1 : 1.0) * unit + wide) * std::abs(value * factor) + wide * (1 + std::abs(factor)) +
               step * (1 + std::abs(factor));
      };
      const double weighted = testing::rounded(testing::wide_of(c.dtype), grad * weight);
      if (c.is_gated && testing::wide_of(c.dtype) != c.dtype) {
        const double error = wide * (std::abs(value) + 1);
        y.push_back(testing::twice_rounded(c.dtype, value, error, up, weight));
        dx[static_cast<size_t>(place + c.columns)] = testing::twice_rounded(c.dtype, value, error, weighted);
      } else {
        y.push_back({value * up * weight, bound(up * weight)});
        if (c.is_gated) dx[static_cast<size_t>(place + c.columns)] = {value * grad * weight, bound(grad * weight)};
      }
      const double factor = grad * weight * up;
      dx[static_cast<size_t>(place)] = {
          factor * slope,
          unit * std::abs(factor * slope) + wide * (4 * std::abs(factor) + std::abs(factor * slope)) + step};
      dweight.value += grad * value * up;
      dweight.bound +=
          ((c.is_gated ? 1.1 * unit : 0) + wide) * std::abs(grad * value * up) + (wide + step) * std::abs(grad * up);
    }
    dweights.push_back(dweight);
  }
  testing::expect_near(results[0], y, "y");
  testing::expect_near(results[1], dx, "dx");
  if (c.has_weights) testing::expect_near(results[2], dweights, "dweights");
}

void try_case(const ExpertActivationCase& c) {
  ExpertInputs in(c);
  testing::in_every_order(
      c.what(), [&] { return run(c, in); }, [&](const std::vector<Array>& results) { check(c, in, results); });
}

TEST(ExpertActivationKernels, EqualLoopsInDoubleInEveryOrder) {
  const std::pair<ActivationKind, testing::Activation> kinds[] = {
      {ActivationKind::kSilu, testing::kSilu},
      {ActivationKind::kGelu, testing::kErfGelu},
      {ActivationKind::kGeluTanh, testing::kTanhGelu},
      {ActivationKind::kSquaredRelu, testing::kSquaredRelu}};
  // Every kind with one size; every size, of rows of one wave to several blocks of work, with one kind.
  const std::vector<std::pair<int64_t, int64_t>> one_shape = {{3, 40}};
  for (const auto& [kind, activation] : kinds) {
    for (const auto& [rows, columns] : kind == ActivationKind::kSilu ? testing::elementwise_shapes() : one_shape) {
      for (const Dtype dtype : testing::dtypes()) {
        for (const int options : {0, 1, 2, 3}) {
          try_case({.kind = kind,
                    .activation = activation,
                    .is_gated = options % 2 == 1,
                    .has_weights = options / 2 == 1,
                    .dtype = dtype,
                    .rows = rows,
                    .columns = columns});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ExpertActivationKernels, TakeArraysThatAreNotAligned) {
  for (const Dtype dtype : testing::dtypes()) {
    try_case({.kind = ActivationKind::kSilu,
              .activation = testing::kSilu,
              .is_gated = true,
              .has_weights = true,
              .dtype = dtype,
              .rows = 3,
              .columns = 16,
              .shift = 1});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::ops

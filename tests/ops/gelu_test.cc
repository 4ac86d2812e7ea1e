// bias_gelu, geglu and bias_squared_relu: the CPU kernels against the reference, ATen's and float64, their gradients
// against finite differences.
#include "ops/gelu/gelu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/error.h"
#include "ops/linear/linear.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::gelu_test {
namespace {

using at::Tensor;
using BiasGelu = testing::OnDevice;
using Geglu = testing::OnDevice;
using testing::smallest_step_of;
using testing::unit_of;

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {5, 131}, {67, 48}};
constexpr GeluForm kForms[] = {GeluForm::kTanh, GeluForm::kErf, GeluForm::kQuick};
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

const char* name_of(GeluForm form) {
  return form == GeluForm::kTanh ? "tanh" : form == GeluForm::kErf ? "erf" : "quick";
}

std::string describe(const Shape& shape, at::ScalarType dtype, const char* form) {
  return fmt::format("({}, {}) {} {}", shape.rows, shape.columns, c10::toString(dtype), form);
}

Tensor wide(const Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; }

// An activation with a bias, and its gradient.
struct BiasActivation {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& bias, Kernels)> forward;
  std::function<Tensor(const Tensor& dy, const Tensor& x, const Tensor& bias, Kernels)> backward;
};

std::vector<BiasActivation> bias_activations() {
  std::vector<BiasActivation> all;
  for (const GeluForm form : kForms) {
    all.push_back(
        {name_of(form),
         [form](const Tensor& x, const Tensor& bias, Kernels kernels) { return bias_gelu(x, bias, form, kernels); },
         [form](const Tensor& dy, const Tensor& x, const Tensor& bias, Kernels kernels) {
           return bias_gelu_backward(dy, x, bias, form, kernels);
         }});
  }
  all.push_back(
      {"squared ReLU",
       [](const Tensor& x, const Tensor& bias, Kernels kernels) { return bias_squared_relu(x, bias, kernels); },
       [](const Tensor& dy, const Tensor& x, const Tensor& bias, Kernels kernels) {
         return bias_squared_relu_backward(dy, x, bias, kernels);
       }});
  return all;
}

// Error of float in values of order 10: 2e-6 of the steepest slope; the probability in 16 bits is good to 8e-8, and x
// to 2^-23 before it meets a slope of up to 20 (the squared ReLU's).
double wide_error(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-14 : 5e-6; }

TEST_P(BiasGelu, ForwardMatchesReferenceAndFloat64) {
  at::manual_seed(1);
  for (const BiasActivation& activation : bias_activations()) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        for (const bool has_bias : {false, true}) {
          const Tensor x = (testing::randn({shape.rows, shape.columns}) * 3).to(dtype);
          const Tensor bias = has_bias ? testing::randn({shape.columns}).to(dtype) : Tensor();
          const auto what = describe(shape, dtype, activation.name);
          const Tensor y = activation.forward(x, bias, Kernels::kFused);
          ASSERT_EQ(y.scalar_type(), dtype);
          // One rounding, and few units of float.
          const double near = wide_error(dtype) + smallest_step_of(dtype), half = 0.51 * unit_of(dtype);
          EXPECT_TENSOR_NEAR(y, activation.forward(wide(x), wide(bias), Kernels::kReference),
                             {.abs = near, .rel = half + wide_error(dtype), .what = what});
          EXPECT_TENSOR_NEAR(y, activation.forward(x, bias, Kernels::kReference),
                             {.abs = near, .rel = 2 * half + wide_error(dtype), .what = what + " reference"});
        }
      }
    }
  }
}

TEST_P(BiasGelu, BackwardMatchesReferenceAndFloat64) {
  at::manual_seed(2);
  for (const BiasActivation& activation : bias_activations()) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        for (const bool has_bias : {false, true}) {
          const Tensor x = (testing::randn({shape.rows, shape.columns}) * 3).to(dtype), dy = at::randn_like(x);
          const Tensor bias = has_bias ? testing::randn({shape.columns}).to(dtype) : Tensor();
          const auto what = describe(shape, dtype, activation.name);
          const Tensor dx = activation.backward(dy, x, bias, Kernels::kFused);
          const double near = 4 * wide_error(dtype) + smallest_step_of(dtype), half = 0.51 * unit_of(dtype);
          EXPECT_TENSOR_NEAR(dx, activation.backward(wide(dy), wide(x), wide(bias), Kernels::kReference),
                             {.abs = near, .rel = half + wide_error(dtype), .what = what});
          EXPECT_TENSOR_NEAR(dx, activation.backward(dy, x, bias, Kernels::kReference),
                             {.abs = near, .rel = 2 * half + wide_error(dtype), .what = what + " reference"});
        }
      }
    }
  }
}

TEST_P(BiasGelu, AgreesWithAten) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor x = (testing::randn({7, 131}) * 3).to(dtype), dy = at::randn_like(x);
    for (const Kernels kernels : kBoth) {
      const testing::Tolerance tolerance{.abs = 2 * wide_error(dtype) + smallest_step_of(dtype),
                                         .rel = 1.1 * unit_of(dtype) + wide_error(dtype),
                                         .what = c10::toString(dtype)};
      EXPECT_TENSOR_NEAR(bias_gelu(x, {}, GeluForm::kTanh, kernels), at::gelu(x, "tanh"), tolerance);
      EXPECT_TENSOR_NEAR(bias_gelu(x, {}, GeluForm::kErf, kernels), at::gelu(x, "none"), tolerance);
      EXPECT_TENSOR_NEAR(bias_gelu_backward(dy, x, {}, GeluForm::kTanh, kernels), at::gelu_backward(dy, x, "tanh"),
                         tolerance);
      EXPECT_TENSOR_NEAR(bias_gelu_backward(dy, x, {}, GeluForm::kErf, kernels), at::gelu_backward(dy, x, "none"),
                         tolerance);
    }
  }
}

// On the CPU only: references do without. The tails: (1 + tanh) / 2 and (1 + erf) / 2 cancel to few digits at -5, the
// forms used here do not.
TEST(BiasGelu, SmallResultsKeepTheirDigits) {
  const Tensor x = testing::linspace(-9, -3, 61).view({1, -1}), bias;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double near = dtype == at::kDouble ? 1e-13 : 2e-5;  // 2^-24 of the exponent, 40 at -9
    // Float64's own cancellation leaves 1e-17.
    EXPECT_TENSOR_NEAR(bias_gelu(x.to(dtype), bias, GeluForm::kTanh), at::gelu(x.to(at::kDouble), "tanh"),
                       {.abs = 2e-15, .rel = near, .what = "tanh"});
    EXPECT_TENSOR_NEAR(bias_gelu(x.to(dtype), bias, GeluForm::kErf),
                       0.5 * x.to(at::kDouble) * at::erfc(-x.to(at::kDouble) / std::sqrt(2.)),
                       {.rel = near, .what = "erf"});
  }
}

// On the CPU only: references multiply 0 by infinity.
TEST(BiasGelu, LargeInputsNeitherOverflowNorTurnIntoNan) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor x =
        testing::tensor({-3e38, -1e30, -1e4, -500., -60., 60., 500., 1e4, 1e30, 3e38}, at::kDouble).to(dtype);
    const Tensor row = x.view({1, -1}), gate_up = at::cat({row, at::full_like(row, 0.5)}, -1);
    const Tensor is_positive = (row > 0).to(dtype);
    for (const GeluForm form : kForms) {
      EXPECT_TENSOR_NEAR(bias_gelu(row, {}, form), at::relu(row), {.abs = 1e-30, .what = name_of(form)});
      EXPECT_TENSOR_NEAR(bias_gelu_backward(at::ones_like(row), row, {}, form), is_positive,
                         {.abs = 1e-30, .rel = 1e-6, .what = name_of(form)});
      EXPECT_TENSOR_NEAR(geglu(gate_up, form), at::relu(row) / 2, {.abs = 1e-30, .what = name_of(form)});
      EXPECT_TENSOR_NEAR(geglu_backward(at::ones_like(row), gate_up, form),
                         at::cat({is_positive / 2, at::relu(row)}, -1),
                         {.abs = 1e-30, .rel = 1e-6, .what = name_of(form)});
    }
  }
}

TEST_P(BiasGelu, NanStaysNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor x = testing::full({1, 35}, nan, dtype), ones = at::ones_like(x);
    for (const BiasActivation& activation : bias_activations()) {
      EXPECT_TRUE(activation.forward(x, {}, Kernels::kFused).isnan().all().item<bool>()) << activation.name;
      EXPECT_TRUE(activation.backward(ones, x, {}, Kernels::kFused).isnan().all().item<bool>()) << activation.name;
    }
  }
}

TEST_P(BiasGelu, GradientsMatchFiniteDifferences) {
  at::manual_seed(4);
  for (const Kernels kernels : kBoth) {
    for (const BiasActivation& activation : bias_activations()) {
      const auto what = fmt::format("{} {}", activation.name, kernels == Kernels::kFused ? "fused" : "reference");
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return activation.forward(in[0], in[1], kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            const Tensor dx = activation.backward(dy, in[0], in[1], kernels), db = at::zeros_like(in[1]);
            bias_grad_(db, dx, kernels);
            return {dx, db};
          },
          {testing::randn({3, 11}, at::kDouble), testing::randn({11}, at::kDouble)}, what);
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return activation.forward(in[0], {}, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {activation.backward(dy, in[0], {}, kernels)};
          },
          {testing::randn({3, 11}, at::kDouble)}, what + " without bias");
    }
    for (const GeluForm form : kForms) {
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return geglu(in[0], form, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {geglu_backward(dy, in[0], form, kernels)};
          },
          {testing::randn({3, 22}, at::kDouble)},
          fmt::format("geglu {} {}", name_of(form), kernels == Kernels::kFused ? "fused" : "reference"));
    }
  }
}

TEST_P(Geglu, MatchesReferenceAndFloat64) {
  at::manual_seed(5);
  for (const GeluForm form : kForms) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        const Tensor x = (testing::randn({shape.rows, 2 * shape.columns}) * 3).to(dtype);
        const Tensor dy = testing::randn({shape.rows, shape.columns}).to(dtype);
        const auto what = describe(shape, dtype, name_of(form));
        // Two roundings of half a unit each; |up| < 15 multiplies the error of gelu(gate).
        const double unit = unit_of(dtype), near = 20 * wide_error(dtype) + 16 * smallest_step_of(dtype);
        const Tensor y = geglu(x, form);
        ASSERT_EQ(y.scalar_type(), dtype);
        EXPECT_TENSOR_NEAR(y, geglu(wide(x), form, Kernels::kReference),
                           {.abs = near, .rel = 1.1 * unit, .what = what});
        EXPECT_TENSOR_NEAR(y, geglu(x, form, Kernels::kReference),
                           {.abs = near, .rel = 2.1 * unit, .what = what + " reference"});
        const Tensor dx = geglu_backward(dy, x, form);
        EXPECT_TENSOR_NEAR(dx, geglu_backward(wide(dy), wide(x), form, Kernels::kReference),
                           {.abs = near, .rel = 1.1 * unit, .what = what + " backward"});
        EXPECT_TENSOR_NEAR(dx, geglu_backward(dy, x, form, Kernels::kReference),
                           {.abs = near, .rel = 2.1 * unit, .what = what + " backward reference"});
      }
    }
  }
}

TEST(BiasGelu, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 4});
  EXPECT_THROW(bias_gelu(x.to(at::kInt), {}, GeluForm::kTanh), UserError);
  EXPECT_THROW(bias_gelu(testing::ones({4, 2}).t(), {}, GeluForm::kTanh), UserError);
  EXPECT_THROW(bias_gelu(x, testing::ones({4}, at::kDouble), GeluForm::kTanh), UserError);
  EXPECT_THROW(bias_squared_relu(x, testing::ones({3})), UserError);
  EXPECT_THROW(bias_squared_relu_backward(testing::ones({2, 3}), x, {}), UserError);
  EXPECT_THROW(bias_gelu_backward(testing::ones({2, 4}, at::kDouble), x, {}, GeluForm::kErf), UserError);
  EXPECT_THROW(geglu(testing::ones({2, 3}), GeluForm::kErf), UserError);
  EXPECT_THROW(geglu_backward(testing::ones({2, 3}), x, GeluForm::kErf), UserError);
  try {
    bias_gelu(x, testing::ones({5}), GeluForm::kQuick);
    FAIL() << "a long bias passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "bias_gelu: bias has shape (5), but must be (4)");
  }
}

TEST(BiasGelu, MetaTensorsGiveShapesWithoutData) {
  const Tensor x = at::empty({3, 10}, at::device(at::kMeta).dtype(at::kBFloat16)), bias = at::empty({10}, x.options());
  const Tensor y = bias_gelu(x, bias, GeluForm::kTanh), gated = geglu(x, GeluForm::kErf);
  EXPECT_EQ(bias_gelu_backward(y, x, bias, GeluForm::kTanh).sizes(), x.sizes());
  EXPECT_EQ(gated.sizes(), at::IntArrayRef({3, 5}));
  EXPECT_EQ(geglu_backward(gated, x, GeluForm::kErf).sizes(), x.sizes());
  EXPECT_EQ(bias_squared_relu_backward(bias_squared_relu(x, {}), x, {}).sizes(), x.sizes());
  EXPECT_TRUE(gated.is_meta());
}

MEGALITH_ON_EVERY_DEVICE(BiasGelu);
MEGALITH_ON_EVERY_DEVICE(Geglu);

}  // namespace
}  // namespace megalith::ops::gelu_test

// Both forms of GELU, plain and gated, and the squared ReLU: the CPU kernels against the reference, ATen's and float64,
// their gradients against finite differences.
#include "ops/activation/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/gradients.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::activation_test {
namespace {

using at::Tensor;
using PlainActivation = testing::OnDevice;
using GatedGelu = testing::OnDevice;
using testing::smallest_step_of;
using testing::unit_of;

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {2, 64}, {5, 131}, {67, 48}};
constexpr ActivationKind kGelus[] = {ActivationKind::kGeluTanh, ActivationKind::kGelu};
constexpr ActivationKind kPlain[] = {ActivationKind::kGeluTanh, ActivationKind::kGelu, ActivationKind::kSquaredRelu};
constexpr Kernels kBoth[] = {Kernels::kFused, Kernels::kReference};

const char* name_of(ActivationKind kind) {
  return kind == ActivationKind::kGeluTanh ? "tanh" : kind == ActivationKind::kGelu ? "erf" : "squared ReLU";
}

std::string describe(const Shape& shape, at::ScalarType dtype, ActivationKind kind) {
  return fmt::format("({}, {}) {} {}", shape.rows, shape.columns, c10::toString(dtype), name_of(kind));
}

Tensor wide(const Tensor& x) { return x.to(at::kDouble); }

Tensor plain(const Tensor& x, ActivationKind kind, Kernels kernels = Kernels::kFused) {
  return activation(x, kind, /*is_gated=*/false, kernels);
}
Tensor plain_backward(const Tensor& dy, const Tensor& x, ActivationKind kind, Kernels kernels = Kernels::kFused) {
  return activation_backward(dy, x, kind, /*is_gated=*/false, kernels);
}
Tensor gated(const Tensor& x, ActivationKind kind, Kernels kernels = Kernels::kFused) {
  return activation(x, kind, /*is_gated=*/true, kernels);
}
Tensor gated_backward(const Tensor& dy, const Tensor& x, ActivationKind kind, Kernels kernels = Kernels::kFused) {
  return activation_backward(dy, x, kind, /*is_gated=*/true, kernels);
}

// Error of float in values of order 10: 2e-6 of the steepest slope; the probability in 16 bits is good to 8e-8, and x
// to 2^-23 before it meets a slope of up to 20 (the squared ReLU's).
double wide_error(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-14 : 5e-6; }

TEST_P(PlainActivation, MatchesReferenceAndFloat64) {
  at::manual_seed(1);
  for (const ActivationKind kind : kPlain) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        const Tensor x = (testing::randn({shape.rows, shape.columns}) * 3).to(dtype), dy = at::randn_like(x);
        const auto what = describe(shape, dtype, kind);
        const Tensor y = plain(x, kind), dx = plain_backward(dy, x, kind);
        ASSERT_EQ(y.scalar_type(), dtype);
        // One rounding, and few units of float.
        const double error = wide_error(dtype), step = smallest_step_of(dtype), half = 0.51 * unit_of(dtype);
        EXPECT_TENSOR_NEAR(y, plain(wide(x), kind, Kernels::kReference),
                           {.abs = error + step, .rel = half + error, .what = what});
        EXPECT_TENSOR_NEAR(y, plain(x, kind, Kernels::kReference),
                           {.abs = error + step, .rel = 2 * half + error, .what = what + " reference"});
        EXPECT_TENSOR_NEAR(dx, plain_backward(wide(dy), wide(x), kind, Kernels::kReference),
                           {.abs = 4 * error + step, .rel = half + error, .what = what + " backward"});
        EXPECT_TENSOR_NEAR(dx, plain_backward(dy, x, kind, Kernels::kReference),
                           {.abs = 4 * error + step, .rel = 2 * half + error, .what = what + " backward reference"});
      }
    }
  }
}

TEST_P(PlainActivation, AgreesWithAten) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor x = (testing::randn({7, 131}) * 3).to(dtype), dy = at::randn_like(x);
    for (const Kernels kernels : kBoth) {
      const testing::Tolerance tolerance{.abs = 2 * wide_error(dtype) + smallest_step_of(dtype),
                                         .rel = 1.1 * unit_of(dtype) + wide_error(dtype),
                                         .what = c10::toString(dtype)};
      EXPECT_TENSOR_NEAR(plain(x, ActivationKind::kGeluTanh, kernels), at::gelu(x, "tanh"), tolerance);
      EXPECT_TENSOR_NEAR(plain(x, ActivationKind::kGelu, kernels), at::gelu(x, "none"), tolerance);
      EXPECT_TENSOR_NEAR(plain_backward(dy, x, ActivationKind::kGeluTanh, kernels), at::gelu_backward(dy, x, "tanh"),
                         tolerance);
      EXPECT_TENSOR_NEAR(plain_backward(dy, x, ActivationKind::kGelu, kernels), at::gelu_backward(dy, x, "none"),
                         tolerance);
    }
  }
}

// On the CPU only: references do without. The tails: (1 + tanh) / 2 and (1 + erf) / 2 cancel to few digits at -5, the
// forms used here do not.
TEST(PlainActivation, SmallResultsKeepTheirDigits) {
  const Tensor x = testing::linspace(-9, -3, 61).view({1, -1});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double near = dtype == at::kDouble ? 1e-13 : 2e-5;  // 2^-24 of the exponent, 40 at -9
    // Float64's own cancellation leaves 1e-17.
    EXPECT_TENSOR_NEAR(plain(x.to(dtype), ActivationKind::kGeluTanh), at::gelu(x.to(at::kDouble), "tanh"),
                       {.abs = 2e-15, .rel = near, .what = "tanh"});
    EXPECT_TENSOR_NEAR(plain(x.to(dtype), ActivationKind::kGelu),
                       0.5 * x.to(at::kDouble) * at::erfc(-x.to(at::kDouble) / std::sqrt(2.)),
                       {.rel = near, .what = "erf"});
  }
}

// On the CPU only: references multiply 0 by infinity.
TEST(PlainActivation, LargeInputsNeitherOverflowNorTurnIntoNan) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor x =
        testing::tensor({-3e38, -1e30, -1e4, -500., -60., 60., 500., 1e4, 1e30, 3e38}, at::kDouble).to(dtype);
    const Tensor row = x.view({1, -1}), gate_up = at::cat({row, at::full_like(row, 0.5)}, -1);
    const Tensor is_positive = (row > 0).to(dtype);
    for (const ActivationKind kind : kGelus) {
      EXPECT_TENSOR_NEAR(plain(row, kind), at::relu(row), {.abs = 1e-30, .what = name_of(kind)});
      EXPECT_TENSOR_NEAR(plain_backward(at::ones_like(row), row, kind), is_positive,
                         {.abs = 1e-30, .rel = 1e-6, .what = name_of(kind)});
      EXPECT_TENSOR_NEAR(gated(gate_up, kind), at::relu(row) / 2, {.abs = 1e-30, .what = name_of(kind)});
      EXPECT_TENSOR_NEAR(gated_backward(at::ones_like(row), gate_up, kind),
                         at::cat({is_positive / 2, at::relu(row)}, -1),
                         {.abs = 1e-30, .rel = 1e-6, .what = name_of(kind)});
    }
  }
}

TEST_P(PlainActivation, NanStaysNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : testing::kFloatingDtypes) {
    const Tensor x = testing::full({1, 35}, nan, dtype), ones = at::ones_like(x);
    for (const ActivationKind kind : kPlain) {
      EXPECT_TRUE(plain(x, kind).isnan().all().item<bool>()) << name_of(kind);
      EXPECT_TRUE(plain_backward(ones, x, kind).isnan().all().item<bool>()) << name_of(kind);
    }
  }
}

TEST_P(PlainActivation, GradientsMatchFiniteDifferences) {
  at::manual_seed(4);
  for (const Kernels kernels : kBoth) {
    for (const ActivationKind kind : kPlain) {
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return plain(in[0], kind, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {plain_backward(dy, in[0], kind, kernels)};
          },
          {testing::randn({3, 11}, at::kDouble)},
          fmt::format("{} {}", name_of(kind), kernels == Kernels::kFused ? "fused" : "reference"));
    }
    for (const ActivationKind kind : kGelus) {
      testing::expect_gradients_match_differences(
          [&](const std::vector<Tensor>& in) { return gated(in[0], kind, kernels); },
          [&](const Tensor& dy, const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {gated_backward(dy, in[0], kind, kernels)};
          },
          {testing::randn({3, 22}, at::kDouble)},
          fmt::format("geglu {} {}", name_of(kind), kernels == Kernels::kFused ? "fused" : "reference"));
    }
  }
}

TEST_P(GatedGelu, MatchesReferenceAndFloat64) {
  at::manual_seed(5);
  for (const ActivationKind kind : kGelus) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType dtype : testing::kFloatingDtypes) {
        const Tensor x = (testing::randn({shape.rows, 2 * shape.columns}) * 3).to(dtype);
        const Tensor dy = testing::randn({shape.rows, shape.columns}).to(dtype);
        const auto what = describe(shape, dtype, kind);
        // Two roundings of half a unit each; |up| < 15 multiplies the error of gelu(gate).
        const double unit = unit_of(dtype), near = 20 * wide_error(dtype) + 16 * smallest_step_of(dtype);
        const Tensor y = gated(x, kind);
        ASSERT_EQ(y.scalar_type(), dtype);
        EXPECT_TENSOR_NEAR(y, gated(wide(x), kind, Kernels::kReference),
                           {.abs = near, .rel = 1.1 * unit, .what = what});
        EXPECT_TENSOR_NEAR(y, gated(x, kind, Kernels::kReference),
                           {.abs = near, .rel = 2.1 * unit, .what = what + " reference"});
        const Tensor dx = gated_backward(dy, x, kind);
        EXPECT_TENSOR_NEAR(dx, gated_backward(wide(dy), wide(x), kind, Kernels::kReference),
                           {.abs = near, .rel = 1.1 * unit, .what = what + " backward"});
        EXPECT_TENSOR_NEAR(dx, gated_backward(dy, x, kind, Kernels::kReference),
                           {.abs = near, .rel = 2.1 * unit, .what = what + " backward reference"});
      }
    }
  }
}

TEST(PlainActivation, WrongArgumentsAreNamed) {
  const Tensor x = testing::ones({2, 4});
  EXPECT_THROW(plain(x.to(at::kInt), ActivationKind::kGeluTanh), UserError);
  EXPECT_THROW(plain(testing::ones({4, 2}).t(), ActivationKind::kGeluTanh), UserError);
  EXPECT_THROW(plain_backward(testing::ones({2, 3}), x, ActivationKind::kSquaredRelu), UserError);
  EXPECT_THROW(plain_backward(testing::ones({2, 4}, at::kDouble), x, ActivationKind::kGelu), UserError);
  EXPECT_THROW(gated(testing::ones({2, 3}), ActivationKind::kGelu), UserError);
  EXPECT_THROW(gated(x, ActivationKind::kSquaredRelu), InternalError);
  EXPECT_THROW(plain(x, ActivationKind::kSilu), InternalError);
  try {
    gated_backward(testing::ones({2, 3}), x, ActivationKind::kGelu);
    FAIL() << "a wide dy passed";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "activation_backward: dy has shape (2, 3), but must be (2, 2)");
  }
}

TEST(PlainActivation, MetaTensorsGiveShapesWithoutData) {
  const Tensor x = at::empty({3, 10}, at::device(at::kMeta).dtype(at::kBFloat16));
  for (const bool is_gated : {false, true}) {
    const Tensor y = activation(x, ActivationKind::kGelu, is_gated);
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(y.sizes(), at::IntArrayRef({3, is_gated ? 5 : 10}));
    EXPECT_EQ(activation_backward(y, x, ActivationKind::kGelu, is_gated).sizes(), x.sizes());
  }
}

MEGALITH_ON_EVERY_DEVICE(PlainActivation);
MEGALITH_ON_EVERY_DEVICE(GatedGelu);

}  // namespace
}  // namespace megalith::ops::activation_test

// The largest absolute value that norms and swiglu take of their result on request.
#include "ops/amax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/swiglu/swiglu.h"
#include "support/dtypes.h"
#include "support/on_device.h"

namespace megalith::ops::amax_test {
namespace {

using at::Tensor;
using Amax = testing::OnDevice;

// Gives y, and raises amax where it is defined.
struct AmaxCall {
  std::string name;
  std::function<Tensor(const Tensor& x, Kernels kernels, const Tensor& amax)> run;
};

std::vector<AmaxCall> amax_calls() {
  const auto ones = [](const Tensor& x) { return at::ones({x.size(1)}, x.options()); };
  const auto half = [=](const Tensor& x) { return ones(x) * 0.5; };
  return {{"rms_norm_forward",
           [=](const Tensor& x, Kernels kernels, const Tensor& amax) {
             return std::get<0>(rms_norm_forward(x, ones(x), 1e-5, kernels, amax));
           }},
          {"add_rms_norm_forward",
           [=](const Tensor& x, Kernels kernels, const Tensor& amax) {
             return std::get<0>(add_rms_norm_forward(x, x, ones(x), 1e-5, kernels, amax));
           }},
          {"layer_norm_forward",
           [=](const Tensor& x, Kernels kernels, const Tensor& amax) {
             return std::get<0>(layer_norm_forward(x, ones(x), half(x), 1e-5, false, kernels, amax));
           }},
          {"add_layer_norm_forward",
           [=](const Tensor& x, Kernels kernels, const Tensor& amax) {
             return std::get<0>(add_layer_norm_forward(x, x, ones(x), half(x), 1e-5, true, kernels, amax));
           }},
          {"swiglu", [](const Tensor& x, Kernels kernels, const Tensor& amax) { return swiglu(x, kernels, amax); }}};
}

void expect_amax(const AmaxCall& call, const Tensor& x, Kernels kernels) {
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor y = call.run(x, kernels, {}), amax = testing::zeros({}, wide);
  EXPECT_TRUE(call.run(x, kernels, amax).equal(y)) << "the result does not depend on who asks";
  const double largest = y.abs().amax().item<double>();
  EXPECT_EQ(amax.item<double>(), largest);
  amax.fill_(largest / 2);
  call.run(x, kernels, amax);
  EXPECT_EQ(amax.item<double>(), largest);
  amax.fill_(2 * largest);
  call.run(x, kernels, amax);
  EXPECT_EQ(amax.item<double>(), 2 * largest) << "less does not lower it";
  const Tensor with_nan = x.clone();
  with_nan.select(0, x.size(0) - 1).select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
  call.run(with_nan, kernels, amax);
  EXPECT_TRUE(std::isnan(amax.item<double>()));
  call.run(x, kernels, amax);
  EXPECT_TRUE(std::isnan(amax.item<double>())) << "a NaN stays";
}

TEST_P(Amax, IsTheLargestAbsoluteValueOfTheResult) {
  at::manual_seed(1);
  // A few lanes a row; a row of several vectors a thread; element by element.
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{9, 16}, {3, 520}, {5, 14}}) {
    for (const at::ScalarType dtype : testing::kFloatingDtypes) {
      const Tensor x = (testing::randn({rows, columns}) * 2).to(dtype);
      for (const AmaxCall& call : amax_calls()) {
        for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
          SCOPED_TRACE(fmt::format("{} ({}, {}) {}{}", call.name, rows, columns, c10::toString(dtype),
                                   kernels == Kernels::kReference ? " reference" : ""));
          expect_amax(call, x, kernels);
        }
      }
    }
  }
}

TEST(Amax, WrongArgumentsAreNamed) {
  const Tensor x = at::ones({2, 4}, at::kBFloat16);
  for (const AmaxCall& call : amax_calls()) {
    for (const Tensor& amax : {at::zeros({1}), at::zeros({}, at::kBFloat16)}) {
      try {
        call.run(x, Kernels::kFused, amax);
        ADD_FAILURE() << call.name << " took a wrong amax";
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find(call.name + ": amax "), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Amax, OfNothingStays) {
  const Tensor amax = at::full({}, 3, at::kFloat);
  raise_amax(amax, at::ones({0, 4}));
  EXPECT_EQ(amax.item<double>(), 3);
  raise_amax({}, at::ones({2}));  // no amax is asked for
}

MEGALITH_ON_EVERY_DEVICE(Amax);

}  // namespace
}  // namespace megalith::ops::amax_test

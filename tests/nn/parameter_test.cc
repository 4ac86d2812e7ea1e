// Parameters: initialisation by name and position, gradients, readiness.
#include "nn/parameter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/philox.h"

namespace megalith {
namespace {

ParameterOptions normal_options(at::ScalarType dtype = at::kDouble, double std = 0.5) {
  return {.dtype = dtype, .init = Init::normal(std)};
}

TEST(Initialise, ElementIsAFunctionOfSeedNameAndCanonicalIndex) {
  Parameter parameter("w", Placement::whole("w", {5, 7}), normal_options());
  parameter.initialise(11);
  for (int64_t i = 0; i < 35; ++i) {
    EXPECT_EQ(parameter.data().flatten()[i].item<double>(),
              0.5 * normal_at(make_philox_key(11, "w"), static_cast<uint64_t>(i)));
  }
  Parameter other_name("v", Placement::whole("v", {5, 7}), normal_options());
  other_name.initialise(11);
  EXPECT_FALSE(at::equal(parameter.data(), other_name.data()));
  other_name.initialise(12);
  const at::Tensor first = other_name.data().clone();
  other_name.initialise(12);
  EXPECT_TRUE(at::equal(first, other_name.data()));
}

TEST(Initialise, SlicesFusedAndTransposedOnesHoldTheSameValues) {
  // Rows longer than the chunk that is drawn at a time.
  const int64_t rows = 6, columns = 2500;
  Parameter whole("w", Placement::whole("w", {rows, columns}), normal_options());
  whole.initialise(3);

  Placement placement;  // [columns 1000… of rows 2–4 | rows of another tensor | padding]
  placement.local_shape = {9, 1500};
  placement.pieces.push_back({"w", {rows, columns}, Box{{2, 1000}, {3, 1500}}, Box{{1, 0}, {3, 1500}}});
  placement.pieces.push_back({"other", {4, 1500}, Box{{0, 0}, {4, 1500}}, Box{{5, 0}, {4, 1500}}});
  Parameter fused("fused", placement, normal_options());
  fused.data().fill_(9);
  fused.initialise(3);
  EXPECT_TRUE(at::equal(fused.data().narrow(0, 1, 3), whole.data().narrow(0, 2, 3).narrow(1, 1000, 1500)));
  EXPECT_EQ(fused.data()[0].abs().max().item<double>(), 0);  // padding
  EXPECT_EQ(fused.data()[4].abs().max().item<double>(), 0);

  Placement turned;  // the file keeps (6, 2500), we hold columns 7… transposed
  turned.local_shape = {11, 6};
  turned.pieces.push_back({.name = "w",
                           .shape = {rows, columns},
                           .canonical = {{0, 7}, {6, 11}},
                           .local = {{0, 0}, {11, 6}},
                           .is_transposed = true});
  Parameter transposed("t", turned, normal_options());
  transposed.initialise(3);
  EXPECT_TRUE(at::equal(transposed.data().t(), whole.data().narrow(1, 7, 11)));
}

TEST(Initialise, StacksOfTransposedMatricesHoldTheSameValues) {
  Parameter whole("w", Placement::whole("w", {4, 5, 6}), normal_options());
  whole.initialise(3);
  Placement turned;  // of experts 1 and 2 the columns 2…4 of each, as rows
  turned.local_shape = {2, 3, 5};
  turned.pieces.push_back({.name = "w",
                           .shape = {4, 5, 6},
                           .canonical = {{1, 0, 2}, {2, 5, 3}},
                           .local = {{0, 0, 0}, {2, 3, 5}},
                           .is_transposed = true});
  Parameter stack("t", turned, normal_options());
  stack.initialise(3);
  EXPECT_TRUE(at::equal(stack.data().transpose(1, 2), whole.data().narrow(0, 1, 2).narrow(2, 2, 3)));
}

TEST(Initialise, DoesNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  Parameter a("w", Placement::whole("w", {300, 100}), normal_options(at::kFloat)),
      b("w", Placement::whole("w", {300, 100}), normal_options(at::kFloat));
  a.initialise(1);
  at::set_num_threads(1);
  b.initialise(1);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(a.data(), b.data()));
}

TEST(Initialise, LowPrecisionIsRoundedOnce) {
  // The error of one rounding to nearest is at most half the spacing of the dtype at the double itself. Rounding
  // through float32 exceeds that for about one value in 2^17, so there are enough to see it.
  const int64_t count = 1 << 20;
  Parameter exact("w", Placement::whole("w", {count}), normal_options(at::kDouble, 0.02));
  exact.initialise(5);
  const at::Tensor power_of_two = at::exp2(at::floor(at::log2(exact.data().abs())));
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Parameter rounded("w", Placement::whole("w", {count}), normal_options(dtype, 0.02));
    rounded.initialise(5);
    const at::Tensor error = (rounded.data().to(at::kDouble) - exact.data()).abs();
    // bf16 has 8 significant bits; fp16 has 11 and a fixed spacing of 2^-24 below 2^-14.
    const at::Tensor half_spacing =
        dtype == at::kBFloat16 ? power_of_two * 0x1p-8 : at::clamp_min(power_of_two * 0x1p-11, 0x1p-25);
    EXPECT_TRUE((error <= half_spacing).all().item<bool>()) << c10::toString(dtype);
  }
}

TEST(Initialise, LanesEqualTheDefinitionToTheBit) {
  // First elements within a block and far off; among 360 thousand draws the approximation leaves about eight
  // roundings open.
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    for (const int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 40) + 1}) {
      for (const int64_t count : {1, 63, 20'000}) {
        const Placement part{.local_shape = {count},
                             .pieces = {{"w", {int64_t{1} << 41}, Box{{first}, {count}}, Box{{0}, {count}}}}};
        Parameter drawn("w", part, normal_options(at::kFloat, 0.02));
        drawn.initialise(seed);
        const auto* values = drawn.data().const_data_ptr<float>();
        for (int64_t i = 0; i < count; ++i) {
          const double value = 0.02 * normal_at(make_philox_key(seed, "w"), static_cast<uint64_t>(first + i));
          ASSERT_EQ(values[i], static_cast<float>(value)) << seed << ", " << first + i;
        }
      }
    }
  }
}

TEST(Initialise, HasTheAskedForSpread) {
  Parameter parameter("w", Placement::whole("w", {400, 400}), normal_options(at::kFloat, 0.02));
  parameter.initialise(7);
  // 160000 samples: the mean's deviation is 5e-5, the spread's 3.5e-5; five of each.
  EXPECT_NEAR(parameter.data().mean().item<double>(), 0, 2.5e-4);
  EXPECT_NEAR(parameter.data().std().item<double>(), 0.02, 1.8e-4);
}

TEST(Parameter, MetaParametersHaveNoStorage) {
  Parameter parameter("w", Placement::whole("w", {1 << 20, 1 << 20}), {.device = at::kMeta});
  parameter.initialise(1);
  EXPECT_EQ(parameter.placement().num_canonical_elements(), int64_t{1} << 40);
}

TEST(Parameter, FilesMayLeaveAPrefixAway) {
  Placement placement = Placement::whole("transformer.wte.weight", {2, 3});
  placement.pieces[0].aliases = {"lm_head.weight"};
  Parameter table("transformer.wte.weight", placement, normal_options());
  table.add_aliases_without("transformer.");
  EXPECT_EQ(table.placement().pieces[0].aliases, (std::vector<std::string>{"lm_head.weight", "wte.weight"}));
  Parameter other("lm_head.weight", Placement::whole("lm_head.weight", {2, 3}), normal_options());
  other.add_aliases_without("transformer.");
  EXPECT_TRUE(other.placement().pieces[0].aliases.empty());
}

TEST(Gradient, FirstContributionOverwritesAndLaterOnesAdd) {
  Parameter parameter("w", Placement::whole("w", {2}), {.dtype = at::kBFloat16});
  parameter.attach_grad_buffer(at::full({2}, NAN, at::kFloat));
  EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  for (int step = 0; step < 2; ++step) {
    parameter.begin_step();
    parameter.add_grad(at::full({2}, 1.5, at::kBFloat16));
    parameter.add_grad(at::full({2}, 2.0, at::kFloat));
    EXPECT_TRUE(at::equal(parameter.grad(), at::full({2}, 3.5, at::kFloat)));
  }
  parameter.begin_step();
  EXPECT_TRUE(parameter.is_grad_empty());
  parameter.finish_step();
  EXPECT_TRUE(at::equal(parameter.grad(), at::zeros({2}, at::kFloat)));
}

TEST(Gradient, IsReadyWithTheLastContributionOfTheLastMicrobatch) {
  Parameter parameter("w", Placement::whole("w", {1}), {});
  parameter.attach_grad_buffer(at::zeros({1}));
  int ready = 0;
  parameter.set_ready_hook([&](Parameter&) { ++ready; });
  parameter.begin_step();
  for (const bool is_last : {false, true}) {
    parameter.set_last_microbatch(is_last);
    parameter.expect_contribution();
    parameter.expect_contribution();  // a tied weight is used twice
    parameter.add_grad(at::ones({1}));
    EXPECT_EQ(ready, 0);
    parameter.add_grad(at::ones({1}));
    EXPECT_EQ(ready, is_last ? 1 : 0);
  }
  EXPECT_EQ(parameter.grad().item<float>(), 4);
}

TEST(Gradient, FrozenParametersTakeNone) {
  Parameter parameter("w", Placement::whole("w", {1}), {.is_trainable = false});
  EXPECT_FALSE(parameter.value().requires_grad());
  EXPECT_THROW(parameter.attach_grad_buffer(at::zeros({1})), InternalError);
  parameter.set_trainable(true);
  EXPECT_TRUE(parameter.value().requires_grad());
  EXPECT_THROW(parameter.attach_grad_buffer(at::zeros({2})), InternalError);
  EXPECT_THROW(parameter.add_grad(at::zeros({1})), InternalError);  // no buffer yet
}

}  // namespace
}  // namespace megalith

// Norms as layers, plain and with the residual addition before them: against ATen's operators, over tensor-parallel
// ranks, and computed again.
#include "nn/norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/kept_bytes.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kNormHidden = 7, kNormTokens = 6;

struct NormForm {
  std::string name;
  NormOptions options;
};
const NormForm kNormForms[] = {
    {"RMSNorm", {.normalization = Normalization::kRmsNorm, .norm_epsilon = 1e-3}},
    {"LayerNorm", {.norm_epsilon = 1e-3}},
    {"RMSNorm with its weight less 1",
     {.normalization = Normalization::kRmsNorm, .norm_epsilon = 1e-3, .apply_layernorm_1p = true}},
    {"LayerNorm with its weight less 1", {.norm_epsilon = 1e-3, .apply_layernorm_1p = true}},
};

at::Tensor naive_norm(const NormOptions& options, const TensorMap& weights, const at::Tensor& x) {
  const at::Tensor& kept = weights.at("norm.weight");
  const at::Tensor weight = options.apply_layernorm_1p ? kept + 1 : kept;
  if (options.normalization == Normalization::kRmsNorm)
    return x * (x.square().mean(-1, true) + options.norm_epsilon).rsqrt() * weight;
  return at::layer_norm(x, {kNormHidden}, weight, weights.at("norm.bias"), options.norm_epsilon);
}

auto make_norm(const NormOptions& options) {
  return
      [options](const LayerContext& context) { return std::make_unique<Norm>(context, "norm", kNormHidden, options); };
}

// A stream made of x in both places; what comes out depends on the norm and on the sum that is carried on.
ResidualStream stream_of(const at::Tensor& x) { return {x.sin() * 2, x * 3}; }

at::Tensor run_added(Norm& norm, const at::Tensor& x) {
  ResidualStream stream = stream_of(x);
  const at::Tensor y = norm.forward(stream);
  EXPECT_FALSE(stream.delta.defined());
  return y + stream.residual.tanh();
}

at::Tensor run_alone(Norm& norm, const at::Tensor& x) { return norm.forward(x); }

struct NormCase {
  at::Tensor x = at::randn({kNormTokens, kNormHidden}, at::kDouble) + 0.5;
  at::Tensor dy = at::randn({kNormTokens, kNormHidden}, at::kDouble);
  TensorMap weights;
  explicit NormCase(const NormOptions& options) {
    const Groups groups = Groups::single();
    weights = golden_weights(*make_norm(options)(double_context(groups)), at::kDouble);
  }
};

TEST(Norm, EveryFormIsThatOfATen) {
  for (const auto& [name, options] : kNormForms) {
    const NormCase c(options);
    const auto alone = [&](const TensorMap& weights, const at::Tensor& x) { return naive_norm(options, weights, x); };
    const auto added = [&](const TensorMap& weights, const at::Tensor& x) {
      const at::Tensor sum = stream_of(x).sum();
      return naive_norm(options, weights, sum) + sum.tanh();
    };
    const LayerPass expected_alone = differentiate(alone, c.weights, c.x, c.dy);
    const LayerPass expected_added = differentiate(added, c.weights, c.x, c.dy);
    const Groups groups = Groups::single();
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      LayerContext context = double_context(groups);
      context.kernels = kernels;
      const auto make = make_norm(options);
      expect_near(run_layer(context, make, run_alone, c.weights, c.x, c.dy), expected_alone, 1e-13, name);
      expect_near(run_layer(context, make, run_added, c.weights, c.x, c.dy), expected_added, 1e-13, name + ", added");
    }
    // Each rank norms all tokens, or its own under sequence parallelism; then the weights' gradients are partial sums.
    for (const bool is_sequence_parallel : {false, true}) {
      expect_near(run_layer_on_ranks(2, is_sequence_parallel, make_norm(options), run_added, c.weights, c.x, c.dy),
                  expected_added, 1e-13, name + (is_sequence_parallel ? ", tp 2 and sequence parallelism" : ", tp 2"));
    }
  }
}

TEST(Norm, WithoutAGraphItGivesTheSame) {
  for (const auto& [name, options] : kNormForms) {
    const NormCase c(options);
    const Groups groups = Groups::single();
    auto norm = make_norm(options)(double_context(groups));
    load(*norm, c.weights);
    const at::Tensor alone = run_alone(*norm, c.x), added = run_added(*norm, c.x);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(run_alone(*norm, c.x), alone)) << name;
    EXPECT_TRUE(at::equal(run_added(*norm, c.x), added)) << name;
  }
}

TEST(Norm, ItsOutputCanBeComputedAgain) {
  for (const auto& [name, options] : kNormForms) {
    const NormCase c(options);
    const Groups groups = Groups::single();
    auto norm = make_norm(options)(double_context(groups));
    load(*norm, c.weights);
    for (const bool has_residual : {false, true}) {
      ResidualStream stream = has_residual ? stream_of(c.x) : ResidualStream{c.x, {}};
      const at::Tensor y = norm->forward(stream);
      EXPECT_TRUE(at::equal(norm->again(Kept(stream.residual)).get(), y)) << name << " " << has_residual;
    }
  }
}

TEST(Norm, BeginsAsTheIdentityOfItsForm) {
  const Groups groups = Groups::single();
  for (const auto& [name, options] : kNormForms) {
    auto norm = make_norm(options)(double_context(groups));
    norm->for_each_parameter([](Parameter& parameter) {
      parameter.initialise(1);
      EXPECT_EQ(parameter.options().decay_mult, 0) << parameter.name();
    });
    const TensorMap values = values_of(*norm);
    EXPECT_EQ(values.size(), options.normalization == Normalization::kLayerNorm ? 2u : 1u) << name;
    EXPECT_TRUE(at::equal(values.at("norm.weight"),
                          at::full({kNormHidden}, options.apply_layernorm_1p ? 0. : 1.).to(at::kDouble)))
        << name;
    // Two bytes an element of 6 tokens, and one or two numbers of 4 bytes a token.
    Norm on_meta({.groups = &groups, .dtype = at::kBFloat16, .device = at::kMeta}, "norm", kNormHidden, options);
    const int64_t kept =
        kept_bytes({6, kNormHidden}, at::kBFloat16, [&](const at::Tensor& x) { return on_meta.forward(x); });
    EXPECT_EQ(kept, 6 * (2 * kNormHidden + (values.size() == 2 ? 8 : 4))) << name;
  }
}

}  // namespace
}  // namespace megalith

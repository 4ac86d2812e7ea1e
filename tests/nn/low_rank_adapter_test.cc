// Low-rank adapters: what they add, what is trained, and which layers their targets mean.
#include "nn/low_rank_adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/mlp.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

LayerContext context_with(const Groups& groups, LoraOptions lora) {
  lora.enabled = true;
  return {.groups = &groups,
          .dtype = at::kDouble,
          .kernels = Kernels::kReference,
          .lora = std::make_shared<const LoraOptions>(std::move(lora))};
}

// Queries, keys and values of unlike widths, in one layer.
std::unique_ptr<Linear> make_qkv(const LayerContext& context) {
  auto layer = std::make_unique<Linear>(
      context, "attn.qkv_proj", 6, std::vector<LinearPart>{{"attn.q_proj", 8}, {"attn.k_proj", 4}, {"attn.v_proj", 4}},
      LinearOptions{.role = LinearRole::kColumn, .has_bias = true, .kind = LinearKind::kQkv});
  freeze_all_but_adapters(layer->parameters());
  return layer;
}

// A part of the layer by plain products of `leaves`, which autograd differentiates.
using PlainPart = std::function<at::Tensor(const at::Tensor& x, const TensorMap& leaves, const std::string& name)>;

// Output and gradients of a layer whose queries and values are adapted are those of plain products, and `num_gradients`
// tensors have any. 1 is added to the lengths, which are positive.
void expect_as_plain_products(LoraOptions options, size_t num_gradients, double tolerance, const PlainPart& adapted) {
  options.dim = 2;
  options.alpha = 6;
  options.b_init = AdapterInit::kNormal;
  options.target_modules = {"q_proj", "v_proj"};
  const Groups groups = Groups::single();
  const auto layer = make_qkv(context_with(groups, std::move(options)));
  TensorMap weights = golden_weights(*layer, at::kDouble);
  for (auto& [name, value] : weights) {
    if (name.ends_with(kMagnitudeEnding)) value += 1;
  }
  load(*layer, weights);
  attach_gradients(*layer);
  const at::Tensor x = at::randn({5, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = layer->forward(x);

  TensorMap leaves;
  for (const auto& [name, value] : weights) leaves[name] = value.clone().set_requires_grad(true);
  const at::Tensor x_plain = x.detach().clone().set_requires_grad(true);
  const at::Tensor keys = at::linear(x_plain, leaves.at("attn.k_proj.weight"), leaves.at("attn.k_proj.bias"));
  const at::Tensor expected =
      at::cat({adapted(x_plain, leaves, "attn.q_proj"), keys, adapted(x_plain, leaves, "attn.v_proj")}, 1);
  EXPECT_LT(relative_difference(y.detach(), expected.detach()), tolerance);

  const at::Tensor dy = at::randn_like(y);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_LT(relative_difference(x.grad(), x_plain.grad()), tolerance);
  const TensorMap gradients = gradients_of(*layer);
  EXPECT_EQ(gradients.size(), num_gradients);
  for (const auto& [name, gradient] : gradients) {
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name << " is frozen";
    EXPECT_LT(relative_difference(gradient, leaves.at(name).grad()), tolerance) << name;
  }
}

TEST(LowRankAdapter, AddsTheProductOfItsMatricesToTheirPartsOnly) {
  const auto adapted = [](const at::Tensor& x, const TensorMap& leaves, const std::string& name) {
    const at::Tensor low = at::linear(x, leaves.at(name + ".lora_A.weight"));
    return at::linear(x, leaves.at(name + ".weight"), leaves.at(name + ".bias")) +
           3 * at::linear(low, leaves.at(name + ".lora_B.weight"));
  };
  expect_as_plain_products({}, /*num_gradients=*/4, 1e-14, adapted);
}

// Ranks and scales of their own, and A0 and B0 subtracted, which learn nothing.
TEST(LowRankAdapter, RanksOfTheirOwnAndAStartThatIsKept) {
  const auto adapted = [](const at::Tensor& x, const TensorMap& leaves, const std::string& name) {
    const double scale = name == "attn.v_proj" ? 12.0 / 3 : 6.0 / 2;
    const auto product = [&](const std::string& ending) {
      const at::Tensor low = at::linear(x, leaves.at(name + ".lora_A" + ending + ".weight"));
      return scale * at::linear(low, leaves.at(name + ".lora_B" + ending + ".weight"));
    };
    return at::linear(x, leaves.at(name + ".weight"), leaves.at(name + ".bias")) + product("") - product("_start");
  };
  expect_as_plain_products({.init_lora_weights = "pissa", .rank_pattern = {"v_proj=3"}, .alpha_pattern = {"v_proj=12"}},
                           /*num_gradients=*/4, 1e-13, adapted);
}

// DoRA. The lengths take no part in the gradient, so autograd is told that they are constants.
TEST(LowRankAdapter, LengthsOfRowsAreTrainedBesideTheirDirections) {
  const auto adapted = [](const at::Tensor& x, const TensorMap& leaves, const std::string& name) {
    const at::Tensor a = leaves.at(name + ".lora_A.weight"), b = leaves.at(name + ".lora_B.weight");
    const at::Tensor sum = leaves.at(name + ".weight").detach() + 3 * at::mm(b, a);
    const at::Tensor factors = leaves.at(name + std::string(kMagnitudeEnding)) / sum.detach().norm(2, 1);
    return at::linear(x, sum) * factors + leaves.at(name + ".bias").detach();
  };
  expect_as_plain_products({.use_dora = true}, /*num_gradients=*/6, 1e-13, adapted);  // A, B and lengths of two parts
}

TEST(LowRankAdapter, PartsOfAFusedLayerShareOneA) {
  const Groups groups = Groups::single();
  const auto layer = make_qkv(context_with(groups, {.dim = 2, .target_modules = {"linear_qkv"}}));
  const TensorMap values = values_of(*layer);
  EXPECT_EQ(values.at("attn.qkv_proj.lora_A.weight").sizes(), (at::IntArrayRef{2, 6}));
  EXPECT_EQ(values.at("attn.q_proj.lora_B.weight").sizes(), (at::IntArrayRef{8, 2}));
  EXPECT_EQ(values.at("attn.v_proj.lora_B.weight").sizes(), (at::IntArrayRef{4, 2}));
  EXPECT_EQ(values.size(), 6U + 4U);
}

TEST(LowRankAdapter, BeginsAsTheModelWithoutIt) {
  const Groups groups = Groups::single();
  const auto adapted = make_qkv(context_with(groups, {.dim = 2, .target_modules = {"all-linear"}}));
  LayerContext plain_context = context_with(groups, {});
  plain_context.lora = nullptr;
  const auto plain = make_qkv(plain_context);
  adapted->for_each_parameter([](Parameter& parameter) { parameter.initialise(7); });
  plain->for_each_parameter([](Parameter& parameter) { parameter.initialise(7); });
  const at::Tensor x = at::randn({3, 6}, at::kDouble);
  EXPECT_TRUE(at::equal(adapted->forward(x), plain->forward(x)));
}

TEST(LowRankAdapter, MatricesBeginAsTheirMethodsSay) {
  const Groups groups = Groups::single();
  const auto values_with = [&](AdapterInit init) {
    const LayerContext context = context_with(groups, {.dim = 64, .a_init = init, .target_modules = {"all-linear"}});
    Linear layer(context, "up", 400, 100, {.role = LinearRole::kColumn});
    layer.for_each_parameter([](Parameter& parameter) { parameter.initialise(7); });
    EXPECT_EQ(values_of(layer).at("up.lora_B.weight").abs().max().item<double>(), 0);
    return values_of(layer).at("up.lora_A.weight");
  };
  // 25,600 draws: a deviation is known to about 0.5 %, a largest value of a uniform draw to a thousandth.
  EXPECT_NEAR(values_with(AdapterInit::kXavier).std().item<double>(), std::sqrt(2.0 / 464),
              0.02 * std::sqrt(2.0 / 464));
  EXPECT_NEAR(values_with(AdapterInit::kNormal).std().item<double>(), 0.2, 0.004);
  const at::Tensor uniform = values_with(AdapterInit::kKaiming);
  EXPECT_NEAR(uniform.max().item<double>(), 0.05, 1e-4);
  EXPECT_NEAR(uniform.min().item<double>(), -0.05, 1e-4);
  EXPECT_NEAR(uniform.mean().item<double>(), 0, 1e-3);
}

TEST(LowRankAdapter, RootOfTheRankDividesWhenAsked) {
  EXPECT_DOUBLE_EQ((LoraOptions{.dim = 16, .alpha = 32}).scale_of("q_proj"), 2);
  EXPECT_DOUBLE_EQ((LoraOptions{.dim = 16, .alpha = 32, .use_rslora = true}).scale_of("q_proj"), 8);
}

TEST(LoraOptions, TheFirstPatternThatFitsTheEndOfANameCounts) {
  const LoraOptions options{.dim = 16,
                            .alpha = 32,
                            .rank_pattern = {R"(layers\.[01]\..*q_proj=4)", "q_proj=8", "mlp.down_proj=2"},
                            .alpha_pattern = {"q_proj=6"}};
  EXPECT_EQ(options.rank_of("model.layers.1.self_attn.q_proj"), 4);
  EXPECT_EQ(options.rank_of("model.layers.2.self_attn.q_proj"), 8);
  EXPECT_EQ(options.rank_of("model.layers.1.mlp.down_proj"), 2);
  EXPECT_EQ(options.rank_of("model.layers.1.other_mlp.down_proj"), 16);
  EXPECT_DOUBLE_EQ(options.scale_of("model.layers.1.self_attn.q_proj"), 1.5);
  EXPECT_DOUBLE_EQ(options.scale_of("model.layers.1.mlp.up_proj"), 2);
}

TEST(LoraOptions, ModulesAreSavedByTheEndsOfTheirNames) {
  const LoraOptions options{.modules_to_save = {"norm", "lm_head", "layers.1.mlp"}};
  EXPECT_TRUE(options.saves("model.norm.weight"));
  EXPECT_TRUE(options.saves("model.layers.0.input_layernorm.weight")) << "PEFT compares ends, not whole words";
  EXPECT_TRUE(options.saves("lm_head.weight"));
  EXPECT_TRUE(options.saves("model.layers.1.mlp.up_proj.weight"));
  EXPECT_FALSE(options.saves("model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(options.saves("model.layers.0.self_attn.q_proj.weight"));
}

TEST(LoraOptions, StartsAreReadAsPeftWritesThem) {
  using Kind = AdapterStart::Kind;
  EXPECT_EQ(parse_adapter_start("true")->kind, Kind::kPeft);
  EXPECT_EQ(parse_adapter_start("pissa")->num_iterations, std::nullopt);
  EXPECT_EQ(parse_adapter_start("pissa_niter_16")->num_iterations, 16);
  EXPECT_TRUE(parse_adapter_start("olora")->decomposes());
  for (const char* word : {"false", "pissa_niter_", "pissa_niter_x", "pissa_niter_5000", "eva", ""}) {
    EXPECT_FALSE(parse_adapter_start(word)) << word;
    EXPECT_EQ(check_lora_options({.enabled = true, .init_lora_weights = word}).size(), 1U) << word;
  }
}

TEST(LowRankAdapter, ComputesNoProductOfAFrozenWeight) {
  const Groups groups = Groups::single();
  const auto layer = make_qkv(context_with(groups, {.dim = 2, .target_modules = {"all-linear"}}));
  const double forward = 2 * 5 * 16 * 6;
  // A 3 x (2 x 6) and B 16 x 2 beside the frozen 16 x 6, whose weight's product is left out of backward.
  EXPECT_DOUBLE_EQ(layer->forward_flops({1, 5}), forward + 2 * 5 * (6 * 6 + 16 * 2));
  EXPECT_DOUBLE_EQ(layer->frozen_flops({1, 5}), forward);
}

TEST(LoraOptions, TargetsMatchNamesKindsAndExpressions) {
  const auto targets = [](std::vector<std::string> words, std::string_view part) {
    return LoraOptions{.enabled = true, .target_modules = std::move(words)}.targets(part);
  };
  EXPECT_TRUE(targets({"q_proj"}, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(targets({"proj"}, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(targets({"mlp.down_proj"}, "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(targets({R"(.*layers\.[02]\..*q_proj)"}, "model.layers.2.self_attn.q_proj"));
  EXPECT_FALSE(targets({R"(.*layers\.[02]\..*q_proj)"}, "model.layers.1.self_attn.q_proj"));
  EXPECT_TRUE(targets({"all-linear"}, "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(targets({"linear_qkv"}, "model.layers.0.self_attn.q_proj"));
  const LoraOptions fused{.enabled = true, .target_modules = {"linear_qkv"}};
  EXPECT_TRUE(fused.targets(LinearKind::kQkv));
  EXPECT_FALSE(fused.targets(LinearKind::kAttentionOutput));
}

TEST(LoraOptions, WhatMatchesNothingAndWhatCannotLearnIsRefused) {
  const std::vector<AdaptableLayer> layers = {{LinearKind::kQkv, {"a.q_proj", "a.k_proj"}, {40, 40}, 40},
                                              {LinearKind::kOther, {"b"}, {40}, 40}};
  const auto errors = check_lora_targets({.enabled = true, .target_modules = {"q_proj", "w1", "linear_fc1"}}, layers);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_NE(errors[0].message().find("'w1'"), std::string::npos);
  EXPECT_NE(errors[0].remedy().find("b, k_proj, q_proj"), std::string::npos);
  EXPECT_NE(errors[1].message().find("'linear_fc1'"), std::string::npos);
  EXPECT_EQ(check_lora_options({.enabled = true, .target_modules = {"q(_proj"}}).size(), 1U);
  EXPECT_EQ(check_lora_options({.enabled = true, .target_modules = {}}).size(), 1U);
  EXPECT_EQ(check_lora_options({.enabled = true, .a_init = AdapterInit::kZero}).size(), 1U);
  EXPECT_TRUE(check_lora_options({.enabled = false, .target_modules = {}}).empty());
  for (const char* entry : {"q_proj", "=4", "q_proj=0", "q_proj=1.5", "(q=4"}) {
    EXPECT_EQ(check_lora_options({.enabled = true, .rank_pattern = {entry}}).size(), 1U) << entry;
  }
  const auto of_shared = check_lora_targets(
      {.enabled = true, .target_modules = {"linear_qkv"}, .rank_pattern = {"q_proj=4", "v_proj=3"}}, layers);
  ASSERT_EQ(of_shared.size(), 2U);
  EXPECT_NE(of_shared[0].message().find("share one A"), std::string::npos) << of_shared[0].message();
  EXPECT_NE(of_shared[1].message().find("ends with 'v_proj'"), std::string::npos) << of_shared[1].message();
}

TEST(LoraOptions, ExpertsOfALayerAreAdaptedTogether) {
  AdaptableLayer experts{.kind = LinearKind::kMlpUp, .in_features = 8, .num_experts = 3};
  for (int expert = 0; expert < 3; ++expert) {
    for (const char* linear : {"gate_proj", "up_proj"}) {
      experts.parts.push_back("mlp.experts." + std::to_string(expert) + "." + linear);
      experts.rows.push_back(6);
    }
  }
  const auto errors = [&](LoraOptions options) {
    options.enabled = true;
    std::string text;
    for (const UserError& error : check_lora_targets(options, {experts})) text += error.message() + "\n";
    return text;
  };
  EXPECT_EQ(errors({.dim = 6, .target_modules = {"gate_proj"}}), "");
  EXPECT_EQ(errors({.dim = 8, .target_modules = {"linear_fc1"}}), "");  // 12 rows share one A
  EXPECT_NE(errors({.dim = 8, .target_modules = {"gate_proj"}}).find("lora.dim is 8, but mlp.experts.0.gate_proj is"),
            std::string::npos);
  EXPECT_NE(errors({.dim = 2, .target_modules = {R"(.*experts\.[01]\.up_proj)"}}).find("means 2 of 3 experts"),
            std::string::npos);
  EXPECT_NE(errors({.dim = 2, .dropout = 0.1, .target_modules = {"up_proj"}}).find("drop nothing"), std::string::npos);
  EXPECT_NE(errors({.dim = 2, .use_dora = true, .target_modules = {"up_proj"}}).find("no lengths"), std::string::npos);
}

TEST(LowRankAdapter, ARankAboveAWidthIsRefused) {
  const Groups groups = Groups::single();
  const LayerContext context = context_with(groups, {.dim = 7, .target_modules = {"all-linear"}});
  EXPECT_THROW(make_qkv(context), UserError);
}

}  // namespace
}  // namespace megalith

// Low-rank adapters of experts: a layer with them gives what the same layer does whose weights hold them, and gradients
// only for them; where they begin at zero it is the layer without.
#include "nn/expert_adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/groups.h"
#include "nn/low_rank_adapter.h"
#include "nn/moe_layer.h"
#include "support/layer_options.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kAdaptedHidden = 6, kAdaptedWidth = 8, kAdaptedExperts = 4;

LayerOptions options_of_adapted_experts() {
  LayerOptions options = plain_layer_options(kAdaptedHidden);
  options.moe_ffn_hidden_size = kAdaptedWidth;
  options.num_experts = kAdaptedExperts;
  return options;
}

struct AdaptedExperts {
  explicit AdaptedExperts(std::vector<std::string> targets) {
    LoraOptions lora{
        .enabled = true, .dim = 2, .alpha = 6, .b_init = AdapterInit::kNormal, .target_modules = std::move(targets)};
    context = {.groups = &groups, .dtype = at::kDouble, .kernels = Kernels::kReference};
    if (!lora.target_modules.empty()) context.lora = std::make_shared<const LoraOptions>(std::move(lora));
    experts = std::make_unique<GroupedExperts>(context, "mlp", options_of_adapted_experts(), MoeSite{});
    if (context.lora != nullptr) freeze_all_but_adapters(experts->parameters());
  }
  Groups groups = Groups::single();
  LayerContext context;
  std::unique_ptr<GroupedExperts> experts;
};

// Expert 2 has no rows.
ExpertRows rows_of_experts() {
  return {.x = at::randn({9, kAdaptedHidden}, at::kDouble).set_requires_grad(true),
          .weights = at::rand({9}, at::kDouble),
          .offsets = at::tensor({0, 4, 5, 5, 9}, at::kLong)};
}

// W + 3 B A for every linear that has them; what is shared among the parts of an expert is found under `fused`.
TensorMap merged_experts(const TensorMap& weights, const TensorMap& leaves) {
  TensorMap merged;
  for (const auto& [name, value] : weights) {
    if (name.find(".lora_") != std::string::npos) continue;
    const std::string linear = name.substr(0, name.rfind('.'));
    const auto up = leaves.find(linear + ".lora_B.weight");
    if (up == leaves.end()) {
      merged[name] = value;
      continue;
    }
    auto down = leaves.find(linear + ".lora_A.weight");
    if (down == leaves.end()) down = leaves.find(linear.substr(0, linear.rfind('.')) + ".gate_up_proj.lora_A.weight");
    merged[name] = value + 3 * at::mm(up->second, down->second);
  }
  return merged;
}

at::Tensor plain_experts(const ExpertRows& rows, const at::Tensor& x, const TensorMap& merged) {
  std::vector<at::Tensor> parts;
  for (int64_t expert = 0; expert < kAdaptedExperts; ++expert) {
    const int64_t begin = rows.offsets[expert].item<int64_t>(), end = rows.offsets[expert + 1].item<int64_t>();
    const std::string name = "mlp.experts." + std::to_string(expert) + ".";
    const at::Tensor own = x.narrow(0, begin, end - begin);
    const at::Tensor gate = at::linear(own, merged.at(name + "gate_proj.weight"));
    const at::Tensor inner = at::silu(gate) * at::linear(own, merged.at(name + "up_proj.weight"));
    parts.push_back(at::linear(inner * rows.weights.narrow(0, begin, end - begin).unsqueeze(1),
                               merged.at(name + "down_proj.weight")));
  }
  return at::cat(parts);
}

void expect_as_merged(const std::vector<std::string>& targets, size_t num_adapters) {
  AdaptedExperts adapted(targets);
  const TensorMap weights = golden_weights(*adapted.experts, at::kDouble);
  load(*adapted.experts, weights);
  attach_gradients(*adapted.experts);
  const ExpertRows rows = rows_of_experts();
  const at::Tensor y = adapted.experts->forward(rows);

  TensorMap leaves;
  for (const auto& [name, value] : weights) {
    if (name.find(".lora_") != std::string::npos) leaves[name] = value.clone().set_requires_grad(true);
  }
  const at::Tensor x = rows.x.detach().clone().set_requires_grad(true);
  const at::Tensor expected = plain_experts(rows, x, merged_experts(weights, leaves));
  EXPECT_LT(relative_difference(y.detach(), expected.detach()), 1e-13);
  const at::Tensor dy = at::randn_like(y);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_LT(relative_difference(rows.x.grad(), x.grad()), 1e-13);
  const TensorMap gradients = gradients_of(*adapted.experts);
  EXPECT_EQ(gradients.size(), num_adapters);
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor of_plain = leaves.at(name).grad();
    EXPECT_LT(relative_difference(gradient, of_plain.defined() ? of_plain : at::zeros_like(gradient)), 1e-13) << name;
  }
}

TEST(ExpertAdapter, AddsTheProductOfEachExpertsMatrices) {
  expect_as_merged({"gate_proj", "up_proj", "down_proj"}, kAdaptedExperts * 3 * 2);
}

TEST(ExpertAdapter, LeavesOutWhatIsNoTarget) {
  expect_as_merged({"up_proj"}, kAdaptedExperts * 2);
  expect_as_merged({"mlp.experts.0.down_proj", R"(mlp\.experts\.[1-3]\.down_proj)"}, kAdaptedExperts * 2);
}

TEST(ExpertAdapter, GateAndUpShareOneAWhereTheyAreOneLayer) {
  expect_as_merged({"linear_fc1"}, kAdaptedExperts * 3);
  AdaptedExperts adapted({"linear_fc1"});
  EXPECT_EQ(values_of(*adapted.experts).at("mlp.experts.3.gate_up_proj.lora_A.weight").sizes(),
            (at::IntArrayRef{2, kAdaptedHidden}));
}

TEST(ExpertAdapter, CostsTheProductsOfItsMatricesAndNoneOfAFrozenWeight) {
  const CostShape shape{1, 10};
  const AdaptedExperts plain({}), adapted({"all-linear"});
  const double base = plain.experts->forward_flops(shape);
  EXPECT_DOUBLE_EQ(adapted.experts->frozen_flops(shape), base);
  EXPECT_EQ(plain.experts->frozen_flops(shape), 0);
  // For each of a token's rows A of gate and up (2 x 2 x 6), both B (2 x 8 x 2), A of down (2 x 8) and its B (6 x 2).
  const double rows = base / (2 * 3 * kAdaptedHidden * kAdaptedWidth);
  EXPECT_DOUBLE_EQ(adapted.experts->forward_flops(shape) - base, 2 * rows * (24 + 32 + 16 + 12));
}

TEST(ExpertAdapter, SaysWhichLinearsItMayStandBeside) {
  const AdaptedExperts plain({});
  const std::vector<AdaptableLayer>& layers = plain.experts->adaptable();
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].parts[3], "mlp.experts.1.up_proj");
  EXPECT_EQ(layers[0].rows[3], kAdaptedWidth);
  EXPECT_EQ(layers[0].in_features, kAdaptedHidden);
  EXPECT_EQ(layers[1].parts[3], "mlp.experts.3.down_proj");
  EXPECT_EQ(layers[1].in_features, kAdaptedWidth);
}

}  // namespace
}  // namespace megalith

// What training of adapters leaves out: the product for the gradient of every frozen weight, and all memory for
// gradients and optimizer states but the adapters' own.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "nn/low_rank_adapter.h"
#include "nn/matmul_recipe.h"
#include "optim/optimizer.h"
#include "parallel/grad_buffer.h"

namespace megalith {
namespace {

using namespace test;

// Floating-point operations of the model's own products, adapters' not among them: those have no recipe.
struct CountedProducts {
  double forward = 0, dgrad = 0, wgrad = 0;
  int num_wgrads = 0;
};

class CountingRecipe : public MatmulRecipe {
 public:
  explicit CountingRecipe(CountedProducts& counts) : MatmulRecipe(Kernels::kReference), counts_(counts) {}

  at::Tensor forward(const Operand& x, const Operand& w, const at::Tensor& bias) const override {
    counts_.forward += flops(x.values, w.values);
    return MatmulRecipe::forward(x, w, bias);
  }
  at::Tensor dgrad(const Operand& dy, const Operand& w) const override {
    counts_.dgrad += flops(dy.values, w.values);
    return MatmulRecipe::dgrad(dy, w);
  }
  void wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, bool accumulate) const override {
    counts_.wgrad += flops(dy.values, dw);
    ++counts_.num_wgrads;
    MatmulRecipe::wgrad_(dw, dy, x, accumulate);
  }
  at::Tensor grouped_forward(const Operand& x, const Operand& w, const at::Tensor& offsets) const override {
    counts_.forward += flops(x.values, w.values, offsets.size(0) - 1);
    return MatmulRecipe::grouped_forward(x, w, offsets);
  }
  at::Tensor grouped_dgrad(const Operand& dy, const Operand& w, const at::Tensor& offsets) const override {
    counts_.dgrad += flops(dy.values, w.values, offsets.size(0) - 1);
    return MatmulRecipe::grouped_dgrad(dy, w, offsets);
  }
  void grouped_wgrad_(const at::Tensor& dw, const Operand& dy, const Operand& x, const at::Tensor& offsets,
                      bool accumulate) const override {
    counts_.wgrad += flops(dy.values, dw, offsets.size(0) - 1);
    ++counts_.num_wgrads;
    MatmulRecipe::grouped_wgrad_(dw, dy, x, offsets, accumulate);
  }

 private:
  static double flops(const at::Tensor& rows, const at::Tensor& weight, int64_t num_experts = 1) {
    return 2 * static_cast<double>(rows.size(0) * weight.numel() / num_experts);
  }
  CountedProducts& counts_;
};

ModelConfig config_of_costs(const std::string& family) {
  ModelConfig config = tiny_config();
  config.num_query_groups = 6;
  if (family == "mixtral") {
    config.num_experts = 4;
    config.moe_router_topk = 2;
  }
  return config;
}

std::shared_ptr<const LoraOptions> adapters_of_all() {
  return std::make_shared<const LoraOptions>(
      LoraOptions{.enabled = true, .dim = 2, .b_init = AdapterInit::kNormal, .target_modules = {"all-linear"}});
}

CountedProducts products_of_a_step(const ModelConfig& config, std::shared_ptr<const LoraOptions> lora) {
  CountedProducts counts;
  const Groups groups = Groups::single();
  LayerContext context = tiny_context(groups);
  context.recipe = std::make_shared<CountingRecipe>(counts);
  context.lora = std::move(lora);
  const auto model = build_model(config, context);
  if (context.lora != nullptr) freeze_all_but_adapters(model->parameters());
  load(*model, golden_weights(*model, at::kDouble));
  attach_gradients(*model);
  const NaiveInput batch = tiny_batch(config, 2, 8, /*has_documents=*/false);
  const ModelOutput output = model->forward(model_input(batch, 0.1), {}, HeadOutput::kLoss);
  output.terms[0].objective.backward();
  return counts;
}

TEST(AdapterCosts, NoGradientOfAFrozenWeightIsComputed) {
  for (const std::string family : {"llama", "mixtral"}) {
    const ModelConfig config = config_of_costs(family);
    const CountedProducts all = products_of_a_step(config, nullptr);
    const CountedProducts adapted = products_of_a_step(config, adapters_of_all());
    EXPECT_EQ(all.wgrad, all.forward) << family;
    EXPECT_EQ(all.dgrad, all.forward) << family;
    EXPECT_EQ(adapted.forward, all.forward) << family;
    EXPECT_EQ(adapted.num_wgrads, 0) << family;
    // Below the first layer nothing is trained: queries, keys and values there send no gradient on.
    const double first = 2.0 * 16 * 3 * 36 * 24;
    EXPECT_EQ(adapted.dgrad, all.forward - first) << family;
  }
}

TEST(AdapterCosts, OnlyAdaptersHaveGradientsAndStates) {
  const ModelConfig config = config_of_costs("mixtral");
  const auto lora = adapters_of_all();
  ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2, .etp = 2, .ep = 2}), [&](Groups& groups) {
    LayerContext context = tiny_context(groups, at::kFloat);
    context.lora = lora;
    const auto model = build_model(config, context);
    freeze_all_but_adapters(model->parameters());
    int64_t elements = 0;
    for (const Parameter* parameter : model->parameters()) {
      if (parameter->options().is_adapter) elements += parameter->placement().num_local_elements();
    }
    ASSERT_GT(elements, 0);
    GradBuffer replicated(model->parameters(), groups, {});
    EXPECT_EQ(replicated.gradient_bytes(), 4 * elements);
    const Optimizer adam(replicated, groups, {}, Kernels::kReference);
    EXPECT_EQ(adam.num_bytes(), 8 * elements);  // two moments of fp32; the weights are their own masters
  });
}

}  // namespace
}  // namespace megalith

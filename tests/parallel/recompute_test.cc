// What the options of recomputation mean, what they refuse, and the runner around toy blocks.
#include "parallel/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "comm/groups.h"
#include "nn/linear.h"
#include "parallel/activation_memory.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

RecomputeOptions full(const std::string& method, int64_t num_layers) {
  return {.recompute_granularity = "full", .recompute_method = method, .recompute_num_layers = num_layers};
}

TEST(RecomputePlan, BlockTakesTheFirstLayersOfTheChunkEachByItself) {
  const RecomputePlan plan = make_recompute_plan(full("block", 3), 4, 6);
  EXPECT_EQ(plan.layers_per_block, 1);
  EXPECT_EQ(plan.layers, (std::set<int64_t>{4, 5, 6}));
  EXPECT_TRUE(make_recompute_plan(full("block", 0), 4, 6).is_empty());
  EXPECT_EQ(make_recompute_plan(full("block", 80), 0, 3).layers.size(), 3u);
}

TEST(RecomputePlan, UniformCutsAllLayersIntoGroups) {
  const RecomputePlan plan = make_recompute_plan(full("uniform", 3), 4, 8);
  EXPECT_EQ(plan.layers_per_block, 3);
  EXPECT_EQ(plan.layers, (std::set<int64_t>{4, 7, 10}));  // the last group has two layers
  EXPECT_EQ(make_recompute_plan(full("uniform", 80), 0, 5).layers_per_block, 5);
}

TEST(RecomputePlan, LayerIdsCountOverTheWholeModel) {
  RecomputeOptions options{.recompute_granularity = "full", .recompute_layer_ids = {0, 5, 7}};
  EXPECT_EQ(make_recompute_plan(options, 4, 4).layers, (std::set<int64_t>{5, 7}));
  EXPECT_TRUE(check_recompute_options(options, {.num_layers = 8}).empty());
  EXPECT_EQ(check_recompute_options(options, {.num_layers = 7}).size(), 1u);
}

TEST(RecomputePlan, TheFirstRecomputedLayersAreOffloaded) {
  RecomputeOptions options = full("block", 4);
  options.cpu_offloading_num_layers = 2;
  EXPECT_EQ(make_recompute_plan(options, 0, 6).offloaded, (std::set<int64_t>{0, 1}));
  options = full("uniform", 2);
  options.cpu_offloading_num_layers = 3;  // a group that begins among them goes as a whole
  EXPECT_EQ(make_recompute_plan(options, 0, 6).offloaded, (std::set<int64_t>{0, 2}));
}

TEST(RecomputeOptions, SelectiveDefaultsToTheCoreOfAttention) {
  EXPECT_FALSE(RecomputeOptions{}.selective().core_attention);
  EXPECT_TRUE(RecomputeOptions{.recompute_activations = true}.selective().core_attention);
  const auto chosen =
      RecomputeOptions{.recompute_granularity = "selective", .recompute_modules = {"layernorm", "mlp_act"}}.selective();
  EXPECT_TRUE(chosen.norms && chosen.mlp_activation);
  EXPECT_FALSE(chosen.core_attention || chosen.mlp);
}

TEST(RecomputeOptions, MistakesAreNamedWithARemedy) {
  struct Mistake {
    RecomputeOptions options;
    std::string message;
  };
  const std::vector<Mistake> mistakes = {
      {{.recompute_granularity = "full", .recompute_num_layers = 1}, "needs recompute_method"},
      {{.recompute_granularity = "full", .recompute_method = "block"}, "needs recompute_num_layers"},
      {full("uniform", 0), "recompute_num_layers 0"},
      {{.recompute_granularity = "selective", .recompute_method = "block"}, "recompute_method block"},
      {{.recompute_granularity = "selective", .recompute_num_layers = 2}, "recompute_num_layers 2"},
      {{.recompute_num_layers = 2}, "recompute_num_layers 2"},
      {{.recompute_modules = {"mlp"}}, "recompute_modules mlp"},
      {{.recompute_granularity = "selective", .recompute_modules = {"rope"}}, "no 'rope'"},
      {{.recompute_granularity = "selective", .recompute_modules = {"moe_act"}}, "the model has no experts"},
      {{.recompute_granularity = "selective", .recompute_modules = {"mla_up_proj"}}, "no latent attention"},
      {{.recompute_granularity = "full",
        .recompute_method = "block",
        .recompute_num_layers = 1,
        .recompute_activations = true},
       "recompute_activations"},
      {{.recompute_granularity = "full", .recompute_method = "block", .recompute_layer_ids = {1}},
       "recompute_layer_ids and recompute_method block"},
      {{.recompute_granularity = "full", .recompute_num_layers = 1, .recompute_layer_ids = {1}},
       "recompute_layer_ids and recompute_num_layers 1"},
      {{.recompute_layer_ids = {1}}, "recompute_layer_ids"},
      {{.cpu_offloading_num_layers = 1}, "cpu_offloading_num_layers 1"},
      {{.recompute_granularity = "selective", .cpu_offloading_num_layers = 1}, "cpu_offloading_num_layers 1"},
  };
  for (const Mistake& mistake : mistakes) {
    const std::vector<UserError> errors = check_recompute_options(mistake.options, {.num_layers = 4});
    ASSERT_EQ(errors.size(), 1u) << mistake.message;
    EXPECT_NE(errors[0].message().find(mistake.message), std::string::npos) << errors[0].message();
    EXPECT_FALSE(errors[0].remedy().empty()) << mistake.message;
  }
  EXPECT_TRUE(check_recompute_options({}, {.num_layers = 4}).empty());
  EXPECT_TRUE(
      check_recompute_options({.recompute_num_layers = 0}, {.num_layers = 4}).empty());  // how presets write "none"
  EXPECT_TRUE(check_recompute_options(full("block", 80), {.num_layers = 4}).empty());
  EXPECT_EQ(recompute_notes(full("block", 80), 4).size(), 1u);
  EXPECT_TRUE(recompute_notes(full("block", 4), 4).empty());
}

// Says what it ran, like data parallelism around the blocks.
struct Recorder : BlockRunner {
  std::vector<std::string> names;
  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override {
    names.push_back(block.name);
    return body(inputs);
  }
};

// Layers of the residual stream: delta' = tanh(linear(delta + residual)), residual' = delta + residual.
struct ToyLayers {
  static constexpr int64_t kWidth = 8;
  explicit ToyLayers(int num_layers) {
    for (int i = 0; i < num_layers; ++i) {
      layers.push_back(std::make_unique<Linear>(
          LayerContext{.groups = &groups, .dtype = at::kBFloat16, .kernels = Kernels::kReference},
          fmt::format("layer{}", i), kWidth, kWidth, LinearOptions{}));
      test::load(*layers.back(), test::golden_weights(*layers.back(), at::kBFloat16));
      test::attach_gradients(*layers.back());
    }
  }
  at::Tensor forward(BlockRunner* runner, const at::Tensor& x) {
    at::Tensor delta = x, residual = at::zeros_like(x) - 0.5;
    for (size_t i = 0; i < layers.size(); ++i) {
      const Block block{.name = fmt::format("layer{}", i),
                        .index = static_cast<int64_t>(i),
                        .modules = {layers[i].get()},
                        .layer = static_cast<int64_t>(i),
                        .adds_inputs = true};
      const auto outputs = run_block(runner, block, {delta, residual}, [this, i](const std::vector<at::Tensor>& in) {
        ++num_runs;
        const at::Tensor sum = in[0] + in[1];
        return std::vector<at::Tensor>{layers[i]->forward(sum).tanh(), sum};
      });
      delta = outputs[0];
      residual = outputs[1];
    }
    return (delta + residual).to(at::kFloat).square().sum();
  }
  Groups groups = Groups::single();
  std::vector<std::unique_ptr<Linear>> layers;
  int num_runs = 0;
};

at::Tensor toy_input() {
  return at::arange(3 * ToyLayers::kWidth, at::kFloat).view({3, -1}).sin().to(at::kBFloat16).set_requires_grad(true);
}

TEST(RecomputeRunner, RecomputesThePlansLayersInsideTheOuterRunner) {
  ToyLayers plain(4);
  const at::Tensor x = toy_input();
  const at::Tensor expected = plain.forward(nullptr, x);
  expected.backward();
  for (const int64_t num_offloaded : {0, 2, 3}) {
    ToyLayers toy(4);
    Recorder outer;
    HostOffload offload(at::kCPU);
    RecomputeOptions options = full("block", 3);
    options.cpu_offloading_num_layers = num_offloaded;
    RecomputeRunner runner(make_recompute_plan(options, 0, 4), &outer, &offload);
    const at::Tensor y = toy_input();
    const at::Tensor loss = toy.forward(&runner, y);
    EXPECT_TRUE(at::equal(loss, expected));
    EXPECT_EQ(toy.num_runs, 4);
    EXPECT_EQ(offload.host_bytes(), num_offloaded * 3 * ToyLayers::kWidth * 2);
    loss.backward();
    EXPECT_EQ(toy.num_runs, 7);
    EXPECT_EQ(outer.names.size(), 4u);  // around the first pass and what it recorded, once
    EXPECT_EQ(offload.host_bytes(), 0);
    EXPECT_TRUE(at::equal(x.grad(), y.grad()));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::equal(toy.layers[i]->weight().grad(), plain.layers[i]->weight().grad())) << i;
    }
  }
}

TEST(RecomputeRunner, WithoutAutogradNothingIsKept) {
  const at::NoGradGuard no_grad;
  ToyLayers toy(2);
  HostOffload offload(at::kCPU);
  RecomputeOptions options = full("block", 2);
  options.cpu_offloading_num_layers = 2;
  RecomputeRunner runner(make_recompute_plan(options, 0, 2), nullptr, &offload);
  toy.forward(&runner, toy_input().detach());
  EXPECT_EQ(toy.num_runs, 2);
  EXPECT_EQ(offload.peak_host_bytes(), 0);
}

TEST(HostOffload, GivesBackTheSameBitsInOtherMemory) {
  HostOffload offload(at::kCPU);
  const at::Tensor a = at::randn({3, 5}), b = at::randn({7}).to(at::kBFloat16);
  const at::Tensor a_then = a.clone(), b_then = b.clone();
  const auto first = offload.store({a, b});
  const auto second = offload.store({b});
  EXPECT_EQ(offload.host_bytes(), 3 * 5 * 4 + 2 * 7 * 2);
  a.fill_(-1);  // real copies
  b.fill_(-1);
  const std::vector<at::Tensor> last = second();
  EXPECT_TRUE(at::equal(last[0], b_then));
  const std::vector<at::Tensor> both = first();
  EXPECT_TRUE(at::equal(both[0], a_then) && at::equal(both[1], b_then));
  EXPECT_EQ(offload.host_bytes(), 0);
  EXPECT_EQ(offload.peak_host_bytes(), 3 * 5 * 4 + 2 * 7 * 2);
  EXPECT_THROW(first(), InternalError);
}

TEST(HostOffload, WhatIsNeverAskedForIsFreedWithItsHolder) {
  HostOffload offload(at::kCPU);
  const auto kept = offload.store({at::ones({4})});
  { const auto dropped = offload.store({at::ones({100})}); }
  EXPECT_EQ(offload.host_bytes(), 16);
  EXPECT_TRUE(at::equal(kept()[0], at::ones({4})));
}

// Three layers that keep 100, or an input of 10 when they are computed again; a head that keeps 7. Backward of a layer
// needs 5 more, or all that it keeps and 15 more, of which 5 are the gradient that comes in.
TEST(ActivationPeak, IsThatOfTheBlockBehindWhichMostIsKept) {
  const auto peak = [&](RecomputeOptions options) {
    const RecomputePlan plan = make_recompute_plan(options, 0, 3);
    std::vector<BlockMemory> blocks;
    for (int64_t i = 0; i < 3; ++i) {
      const bool is_recomputed = plan.layers.contains(i);
      blocks.push_back({{.layer = i}, is_recomputed ? 10 : 100, is_recomputed ? 115 : 105});
    }
    blocks.push_back({{.is_layer = false}, 7, 12});
    const ActivationCost cost = activation_cost(blocks, plan);
    EXPECT_LE(cost.kept, cost.peak);
    return cost.peak;
  };
  EXPECT_EQ(peak({}), 300 + 12);
  EXPECT_EQ(peak(full("block", 1)), 10 + 200 + 12);
  EXPECT_EQ(peak(full("block", 2)), 20 + 100 + 12);
  EXPECT_EQ(peak(full("block", 3)), 20 + 115);
  RecomputeOptions options = full("block", 3);
  options.cpu_offloading_num_layers = 3;
  EXPECT_EQ(peak(options), 10 + 115);  // the input of the layer before it comes back already
}

}  // namespace
}  // namespace megalith

// A layer as GPT-2's files have it: a fused, transposed c_attn, biases, LayerNorm and GELU, against ATen's operators.
#include "nn/decoder_layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kGptBatch = 2, kGptLength = 4, kGptHeads = 2, kGptHeadDim = 3, kGptHidden = 6, kGptFfn = 10;

// Megatron-LM's defaults are GPT-2's.
LayerOptions gpt2_layer_options() {
  LayerOptions options;
  options.hidden_size = kGptHidden;
  options.ffn_hidden_size = kGptFfn;
  options.num_attention_heads = kGptHeads;
  options.kv_channels = kGptHeadDim;
  options.attention_dropout = options.hidden_dropout = 0;
  return options;
}

std::unique_ptr<DecoderLayer> make_gpt2_layer(const LayerContext& context) {
  const DecoderSite site{.names = {.input_norm = "ln_1", .attention = "attn", .mlp_norm = "ln_2", .mlp = "mlp"},
                         .attention = {.output = "c_proj", .fused = "c_attn"},
                         .mlp = {.up = "c_fc", .down = "c_proj"},
                         .is_transposed = true};
  return std::make_unique<DecoderLayer>(context, "h.0", gpt2_layer_options(), site);
}

at::Tensor run_gpt2_layer(DecoderLayer& layer, const at::Tensor& x) {
  return layer.forward({x, {}}, {.b = kGptBatch, .s = kGptLength}, {}).sum();
}

at::Tensor naive_gpt2_layer(const TensorMap& weights, const at::Tensor& x) {
  const auto linear = [&](const std::string& name, const at::Tensor& in) {
    return in.mm(weights.at("h.0." + name + ".weight")) + weights.at("h.0." + name + ".bias");
  };
  const auto norm = [&](const std::string& name, const at::Tensor& in) {
    return at::layer_norm(in, {kGptHidden}, weights.at("h.0." + name + ".weight"), weights.at("h.0." + name + ".bias"),
                          1e-5);
  };
  const std::vector<at::Tensor> qkv = linear("attn.c_attn", norm("ln_1", x)).split(kGptHidden, 1);
  const auto heads = [](const at::Tensor& t) {
    return t.view({kGptBatch, kGptLength, kGptHeads, kGptHeadDim}).transpose(1, 2);
  };
  at::Tensor scores = heads(qkv[0]).matmul(heads(qkv[1]).transpose(2, 3)) / std::sqrt(double{kGptHeadDim});
  const at::Tensor future = at::ones({kGptLength, kGptLength}, at::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor attended = scores.softmax(-1).matmul(heads(qkv[2])).transpose(1, 2).reshape(x.sizes());
  const at::Tensor sum = x + linear("attn.c_proj", attended);
  return sum + linear("mlp.c_proj", at::gelu(linear("mlp.c_fc", norm("ln_2", sum)), "tanh"));
}

TEST(DecoderLayer, Gpt2sIsThatOfATen) {
  const Groups groups = Groups::single();
  const TensorMap weights = golden_weights(*make_gpt2_layer(double_context(groups)), at::kDouble);
  const at::Tensor x = at::randn({kGptBatch * kGptLength, kGptHidden}, at::kDouble);
  const at::Tensor dy = at::randn({kGptBatch * kGptLength, kGptHidden}, at::kDouble);
  const LayerPass expected = differentiate(naive_gpt2_layer, weights, x, dy);
  EXPECT_EQ(expected.gradients.size(), 12u);
  expect_near(run_layer(double_context(groups), make_gpt2_layer, run_gpt2_layer, weights, x, dy), expected, 1e-12,
              "one rank");
  const SelectiveRecompute recomputes[] = {
      {}, {.norms = true}, {.core_attention = true, .mlp_activation = true}, {.norms = true, .mlp = true}};
  for (const bool is_sequence_parallel : {false, true}) {
    for (const SelectiveRecompute& recompute : recomputes) {
      expect_near(
          run_layer_on_ranks(2, is_sequence_parallel, make_gpt2_layer, run_gpt2_layer, weights, x, dy, recompute),
          expected, 1e-12, is_sequence_parallel ? "tp 2 and sequence parallelism" : "tp 2");
    }
  }
}

TEST(DecoderLayer, Gpt2sTensorsHaveTheirNamesAndShapes) {
  const Groups groups = Groups::single();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, value] : values_of(*make_gpt2_layer(double_context(groups)))) {
    shapes[name] = value.sizes().vec();
  }
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"h.0.ln_1.weight", {6}},
      {"h.0.ln_1.bias", {6}},
      {"h.0.attn.c_attn.weight", {6, 18}},
      {"h.0.attn.c_attn.bias", {18}},
      {"h.0.attn.c_proj.weight", {6, 6}},
      {"h.0.attn.c_proj.bias", {6}},
      {"h.0.ln_2.weight", {6}},
      {"h.0.ln_2.bias", {6}},
      {"h.0.mlp.c_fc.weight", {6, 10}},
      {"h.0.mlp.c_fc.bias", {10}},
      {"h.0.mlp.c_proj.weight", {10, 6}},
      {"h.0.mlp.c_proj.bias", {6}},
  };
  EXPECT_EQ(shapes, expected);
}

}  // namespace
}  // namespace megalith

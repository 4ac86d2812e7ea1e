// Tiny models against numbers computed with Hugging Face transformers (float32, eager attention). The weights are a
// function of their place in the byte-wise sorted list of names; see golden_weights().
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "models/tiny_models.h"

namespace megalith {
namespace {

using namespace test;

ModelConfig golden_config() {
  ModelConfig config = tiny_config();
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.num_attention_heads = 4;
  config.kv_channels.reset();
  config.vocab_size = 128;
  return config;
}

struct Golden {
  std::string name;
  ModelConfig config;
  std::vector<double> last_logits, first_logits;
  double loss;
};

std::vector<Golden> goldens() {
  ModelConfig llama = golden_config();
  llama.rotary_base = 5e5;
  llama.use_rope_scaling = true;
  ModelConfig qwen = golden_config();
  qwen.rotary_base = 1e6;
  qwen.norm_epsilon = 1e-6;
  qwen.add_qkv_bias = true;
  qwen.untie_embeddings_and_output_weights = false;
  return {{"llama3.1", llama, {-.948604, -1.42805, -.278039, .226663}, {.568431, -.49975}, 5.576467},
          {"qwen2.5", qwen, {.861627, .348984, 1.20258, .00171185}, {.995838, -.884674}, 5.878569}};
}

class GoldenTest : public testing::TestWithParam<Kernels> {};

TEST_P(GoldenTest, LogitsAndLossAreThoseOfTransformers) {
  const Groups groups = Groups::single();
  for (const Golden& golden : goldens()) {
    for (const int64_t padding : {1, 100}) {  // no padding rows, and a vocabulary padded to 200
      ModelConfig config = golden.config;
      config.make_vocab_size_divisible_by = padding;
      const auto model = build_model(config, tiny_context(groups, at::kFloat, GetParam()));
      load(*model, golden_weights(*model, at::kFloat));
      ModelInput input{.tokens = at::tensor({3, 14, 15, 92, 65, 35, 89, 79}, at::kLong).view({1, 8})};
      input.context.b = 1;
      input.context.s = 8;
      input.labels = at::cat({input.tokens.narrow(1, 1, 7), at::zeros({1, 1}, at::kLong)}, 1);
      input.loss_weights = at::ones({1, 8});
      input.loss_weights[0][7] = 0;
      const at::NoGradGuard no_grad;
      const at::Tensor logits = model->forward(input, {}, HeadOutput::kLogits).logits;
      ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{1, 8, 128}));
      // Six digits are printed; float32 sums of 64 terms add about 1e-6.
      for (size_t i = 0; i < golden.last_logits.size(); ++i) {
        EXPECT_NEAR(logits[0][7][static_cast<int64_t>(i)].item<double>(), golden.last_logits[i], 2e-5) << golden.name;
      }
      for (size_t i = 0; i < golden.first_logits.size(); ++i) {
        EXPECT_NEAR(logits[0][0][static_cast<int64_t>(i)].item<double>(), golden.first_logits[i], 2e-5) << golden.name;
      }
      const ModelOutput output = model->forward(input, {}, HeadOutput::kLoss);
      EXPECT_NEAR(output.terms[0].sum.item<double>() / output.terms[0].weight.item<double>(), golden.loss, 1e-5)
          << golden.name;
    }
  }
}

// Every tensor matters far more than the tolerance above: turned round or exchanged, it shows in the logits.
TEST(GoldenModels, NoticeEveryTensor) {
  const Groups groups = Groups::single();
  const at::NoGradGuard no_grad;
  for (const Golden& golden : goldens()) {
    const auto model = build_model(golden.config, tiny_context(groups));
    const TensorMap weights = golden_weights(*model, at::kDouble);
    ModelInput input{.tokens = at::tensor({3, 14, 15, 92, 65, 35, 89, 79}, at::kLong).view({1, 8})};
    input.context.b = 1;
    input.context.s = 8;
    const auto logits_with = [&](const TensorMap& changed) {
      load(*model, changed);
      return model->forward(input, {}, HeadOutput::kLogits).logits;
    };
    const at::Tensor original = logits_with(weights);
    for (const auto& [name, tensor] : weights) {
      TensorMap changed = weights;
      changed[name] = tensor.flip(0);
      EXPECT_GT((logits_with(changed) - original).abs().max().item<double>(), 1e-3) << golden.name << " " << name;
    }
    for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
             {"mlp.gate_proj", "mlp.up_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}}) {
      TensorMap changed = weights;
      std::swap(changed["model.layers.1." + a + ".weight"], changed["model.layers.1." + b + ".weight"]);
      EXPECT_GT((logits_with(changed) - original).abs().max().item<double>(), 1e-3) << golden.name << " " << a;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GoldenTest, testing::Values(Kernels::kReference, Kernels::kFused));

}  // namespace
}  // namespace megalith

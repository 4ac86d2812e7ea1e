// Tiny models against numbers computed with Hugging Face transformers (float32, eager attention). The weights are a
// function of their place in the byte-wise sorted list of names; see golden_weights().
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "models/layer_pattern.h"
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
  // Windows in layers 0 and 2, and caps that bend what there is.
  ModelConfig gemma2 = golden_config();
  gemma2.num_layers = 3;
  gemma2.rotary_base = 1e4;
  gemma2.norm_epsilon = 1e-6;
  gemma2.norm_placement = NormPlacement::kSandwich;
  gemma2.swiglu = gemma2.untie_embeddings_and_output_weights = false;
  gemma2.geglu = gemma2.apply_layernorm_1p = gemma2.scale_embeddings = true;
  gemma2.query_pre_attn_scalar = 20;
  gemma2.window_size = {2, 0};
  gemma2.window_attn_skip_freq = "2";
  ModelConfig gemma3 = gemma2;
  gemma2.attn_logit_softcapping = 5;
  gemma2.final_logit_softcapping = 8;
  gemma3.qk_layernorm = true;
  gemma3.rotary_base_local = 100;
  gemma3.rotary_seq_len_interpolation_factor = 8;
  // A chunk of three tokens in layers 0 and 1; the last layer has no positions, and no experts.
  ModelConfig llama4 = golden_config();
  llama4.num_layers = 3;
  llama4.rotary_base = 1e4;
  llama4.norm_epsilon = 1e-5;
  llama4.rotary_interleaved = llama4.qk_l2_norm = llama4.moe_apply_probs_on_input = true;
  llama4.no_rope_freq = "3";
  llama4.attention_chunk_size = 3;
  llama4.attn_temperature_scale = 0.5;
  llama4.attn_temperature_floor = 2;
  llama4.num_experts = 4;
  llama4.moe_layer_freq = "[1,1,0]";
  llama4.moe_ffn_hidden_size = llama4.moe_shared_expert_intermediate_size = 32;
  llama4.moe_router_topk = 1;
  llama4.moe_router_score_function = RouterScore::kSigmoid;
  ModelConfig mixtral = golden_config();
  mixtral.rotary_base = 1e6;
  mixtral.num_experts = 4;
  // Windows in layers 0 and 2; some wavelengths are kept, some blended, some stretched.
  ModelConfig gpt_oss = golden_config();
  gpt_oss.num_layers = 3;
  gpt_oss.norm_epsilon = 1e-6;
  gpt_oss.rotary_base = 1e4;
  gpt_oss.use_rope_scaling = true;
  gpt_oss.rope_scaling_type = RopeScalingType::kYarn;
  gpt_oss.rope_scaling_factor = 4;
  gpt_oss.rope_scaling_beta_fast = 4;
  gpt_oss.rope_scaling_beta_slow = 0.5;
  gpt_oss.rope_scaling_truncate = false;
  gpt_oss.rope_scaling_original_max_position_embeddings = 32;
  gpt_oss.window_size = {2, 0};
  gpt_oss.window_attn_skip_freq = "2";
  gpt_oss.softmax_type = SoftmaxType::kLearnable;
  gpt_oss.swiglu = false;
  gpt_oss.quick_geglu = gpt_oss.add_bias_linear = true;
  gpt_oss.glu_linear_offset = 1;
  gpt_oss.activation_func_clamp_value = 7;
  gpt_oss.num_experts = 6;
  gpt_oss.moe_router_topk = 3;
  ModelConfig v2 = golden_config();
  v2.num_layers = 3;
  v2.group_query_attention = false;
  v2.norm_epsilon = 1e-6;
  v2.rotary_base = 1e4;
  v2.multi_latent_attention = v2.qk_layernorm = true;
  v2.q_lora_rank = 24;
  v2.kv_lora_rank = v2.qk_head_dim = v2.v_head_dim = 16;
  v2.qk_pos_emb_head_dim = 8;
  v2.rotary_scaling_factor = 40;
  v2.mscale = v2.mscale_all_dim = 0.707;
  v2.num_experts = 8;
  v2.moe_layer_freq = moe_layer_freq_text(1, 3);
  v2.moe_ffn_hidden_size = 32;
  v2.num_shared_experts = 2;
  v2.moe_router_topk = 3;
  v2.moe_router_pre_softmax = true;
  v2.moe_router_dtype = RouterPrecision::kFp32;
  v2.moe_router_num_groups = 4;
  v2.moe_router_group_topk = 2;
  v2.moe_router_group_score = GroupScore::kMax;
  v2.moe_router_topk_scaling_factor = 16;
  ModelConfig v3 = v2;
  v3.mscale = v3.mscale_all_dim = 1;
  v3.num_shared_experts = 1;
  v3.moe_router_topk = 4;
  v3.moe_router_pre_softmax = false;
  v3.moe_router_group_score = GroupScore::kTopSum;
  v3.moe_router_score_function = RouterScore::kSigmoid;
  v3.moe_router_enable_expert_bias = true;
  v3.moe_router_topk_scaling_factor = 2.5;
  ModelConfig gpt2;
  gpt2.num_layers = 2;
  gpt2.hidden_size = 64;
  gpt2.num_attention_heads = 4;
  gpt2.vocab_size = 128;
  gpt2.max_position_embeddings = 64;
  gpt2.attention_dropout = gpt2.hidden_dropout = 0;
  return {{"llama3.1", llama, {-.948604, -1.42805, -.278039, .226663}, {.568431, -.49975}, 5.576467},
          {"qwen2.5", qwen, {.861627, .348984, 1.20258, .00171185}, {.995838, -.884674}, 5.878569},
          {"gemma2", gemma2, {-1.936943, -.5234118, -.7683924, -1.248684}, {1.426006, -2.168073}, 6.484682},
          {"gemma3", gemma3, {.6317589, -.2654032, -.5253906, -.06984632}, {-.488636, -1.598124}, 6.015675},
          {"llama4", llama4, {-.5404291, -.2075194, -.03759966, -.5208715}, {.4281225, -.9142717}, 5.183625},
          {"mixtral", mixtral, {1.55967, -1.02071, 1.60378, .718721}, {.487333, -.682121}, 4.821817},
          {"gpt_oss", gpt_oss, {.8184587, -1.211368, .479112, .1399222}, {.6454172, .2598633}, 5.147956},
          {"deepseek_v2", v2, {.631262, -.373829, -.848509, .380898}, {.220736, .0525126}, 5.345318},
          {"deepseek_v3", v3, {.391196, -.353443, -.407091, 1.07908}, {1.96511, .0471195}, 5.615791},
          {"gpt2", gpt2, {-.948346, -.535334, .267986, .790111}, {.199881, .0871998}, 5.564469}};
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
    const std::vector<Observation> observed = model->forward(input, {}, HeadOutput::kLogits).observations;
    // Experts that none of the few tokens chose.
    const auto is_idle = [&](const std::string& name) {
      const size_t at = name.find(".experts.");
      // All experts of a layer in one are never idle.
      if (at == std::string::npos || std::isdigit(static_cast<unsigned char>(name[at + 9])) == 0) return false;
      const int64_t layer = std::stoll(name.substr(std::string("model.layers.").size()));
      const auto tokens = std::ranges::find_if(
          observed, [&](const Observation& one) { return one.name == kExpertTokens && one.layer == layer; });
      return tokens->values[std::stoll(name.substr(at + 9))].item<int64_t>() == 0;
    };
    for (const auto& [name, tensor] : weights) {
      if (is_idle(name)) continue;
      TensorMap changed = weights;
      changed[name] = tensor.flip(0);
      EXPECT_GT((logits_with(changed) - original).abs().max().item<double>(), 1e-3) << golden.name << " " << name;
    }
    for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
             {"mlp.gate_proj", "mlp.up_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}}) {
      if (!weights.contains("model.layers.1." + a + ".weight")) continue;  // GPT-2, experts, latent attention
      TensorMap changed = weights;
      std::swap(changed["model.layers.1." + a + ".weight"], changed["model.layers.1." + b + ".weight"]);
      EXPECT_GT((logits_with(changed) - original).abs().max().item<double>(), 1e-3) << golden.name << " " << a;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GoldenTest, testing::Values(Kernels::kReference, Kernels::kFused));

}  // namespace
}  // namespace megalith

// Checkpoints of models with experts: an expert is a tensor of its own in the files, whichever ranks held it, whole or
// in parts, beside others or by itself.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/temporary_folder.h"
#include "train/checkpoint_layouts.h"

namespace megalith {
namespace {

using namespace test;

struct ExpertCase {
  std::string name;
  std::vector<std::string> model;
  std::string precision;
};
class EveryExpertLayout : public ::testing::TestWithParam<ExpertCase> {};

const std::vector<std::string> kMixtralWords = {"--num_layers=2",
                                                "--hidden_size=32",
                                                "--num_attention_heads=4",
                                                "--ffn_hidden_size=24",
                                                "--group_query_attention",
                                                "--num_query_groups=2",
                                                "--untie_embeddings_and_output_weights",
                                                "--num_experts=8",
                                                "--moe_router_topk=2",
                                                "--moe_router_load_balancing_type=aux_loss",
                                                "--moe_aux_loss_coeff=0.02",
                                                "--moe_token_dispatcher_type=alltoall"};

// With an expert bias, which is no trained weight, and a prediction module, whose embedding and head are the model's.
const std::vector<std::string> kDeepseekWords = {"--num_layers=2",
                                                 "--hidden_size=32",
                                                 "--num_attention_heads=4",
                                                 "--ffn_hidden_size=48",
                                                 "--moe_ffn_hidden_size=24",
                                                 "--moe_shared_expert_intermediate_size=24",
                                                 "--multi_latent_attention",
                                                 "--qk_layernorm",
                                                 "--q_lora_rank=12",
                                                 "--kv_lora_rank=12",
                                                 "--qk_head_dim=8",
                                                 "--qk_pos_emb_head_dim=4",
                                                 "--v_head_dim=8",
                                                 "--moe_layer_freq=[0,1]",
                                                 "--num_experts=8",
                                                 "--moe_router_topk=2",
                                                 "--moe_router_score_function=sigmoid",
                                                 "--moe_router_num_groups=4",
                                                 "--moe_router_group_topk=2",
                                                 "--moe_router_enable_expert_bias",
                                                 "--moe_router_bias_update_rate=0.01",
                                                 "--moe_router_load_balancing_type=seq_aux_loss",
                                                 "--moe_aux_loss_coeff=0.01",
                                                 "--mtp_num_layers=1"};

// The first is one rank.
std::vector<DataLayout> expert_data_layouts() {
  const std::string zero = "--use_distributed_optimizer";
  return {{.name = "one rank"},
          {.name = "ep2", .dp = 2, .ep = 2},
          {.name = "ep4", .dp = 4, .ep = 4},
          {.name = "tp2 sp, ep2 etp1", .tp = 2, .words = {"--sequence_parallel"}, .ep = 2, .etp = 1},
          {.name = "tp2 etp2", .tp = 2},
          {.name = "pp2 dp2 ep2, zero", .dp = 2, .words = {zero, "--overlap_grad_reduce"}, .pp = 2, .ep = 2},
          {.name = "dp4 ep2, zero", .dp = 4, .words = {zero, "--ddp_bucket_size=1000"}, .ep = 2},
          {.name = "pp2 dp2 ep2, fsdp", .dp = 2, .words = {"--use_torch_fsdp2"}, .pp = 2, .ep = 2},
          {.name = "cp2 ep2", .cp = 2, .ep = 2}};
}

TEST_P(EveryExpertLayout, GoesOnFromEveryOther) {
  const ExpertCase& tried = GetParam();
  // In bf16 a token whose best experts are nearly equal goes to another one, so losses are compared only in fp32.
  const double tolerance = tried.precision == "--fp32" ? 1e-5 : 0;
  expect_every_layout_goes_on_from_every_other(tried.model, expert_data_layouts(), tried.precision, tolerance);
}

INSTANTIATE_TEST_SUITE_P(ExpertCheckpoints, EveryExpertLayout,
                         ::testing::Values(ExpertCase{"mixtral_fp32", kMixtralWords, "--fp32"},
                                           ExpertCase{"mixtral_bf16", kMixtralWords, "--bf16"},
                                           ExpertCase{"deepseek_fp32", kDeepseekWords, "--fp32"},
                                           ExpertCase{"deepseek_bf16", kDeepseekWords, "--bf16"}),
                         [](const auto& info) { return info.param.name; });

// So that equal files are not files without what experts add.
TEST(ExpertCheckpoints, HoldEveryExpertBiasAndPredictionModule) {
  const TemporaryFolder data, saved;
  train_layout(
      kDeepseekWords, {.name = "ep2", .dp = 2, .ep = 2},
      {"--data_path=" + write_documents(data.path()), "--train_iters=3", "--fp32", "--save", saved.path().string()});
  const TensorMap tensors = stored_tensors(saved.path(), 3);
  const auto count = [&](const std::string& text) {
    return std::count_if(tensors.begin(), tensors.end(),
                         [&](const auto& entry) { return entry.first.find(text) != std::string::npos; });
  };
  // Two layers of eight experts, the second in the prediction module: weights and two moments of three matrices.
  EXPECT_EQ(count(".mlp.experts."), 2 * 8 * 3 * 3);
  EXPECT_EQ(count("layers.2.mlp.experts.7.down_proj.weight"), 3);
  EXPECT_EQ(count("layers.2.eh_proj.weight"), 3);
  EXPECT_EQ(count("e_score_correction_bias"), 2);  // no moments: it is not trained
  for (const auto& [name, tensor] : tensors) {
    if (name.find("e_score_correction_bias") == std::string::npos) continue;
    EXPECT_GT(tensor.abs().max().item<double>(), 0.005)
        << name;  // and yet it moves, by its rate in each of three steps
  }
}

// Under one layout a run that was stopped is the run in one go, to the last bit.
TEST(ExpertCheckpoints, TheSameLayoutGoesOnBitForBit) {
  const TemporaryFolder data;
  const std::string data_path = "--data_path=" + write_documents(data.path());
  for (const auto* model : {&kMixtralWords, &kDeepseekWords}) {
    for (const DataLayout& layout : expert_data_layouts()) {
      const StepLosses straight = train_layout(*model, layout, {data_path, "--train_iters=5", "--bf16"});
      const TemporaryFolder saved;
      const std::string folder = saved.path().string();
      train_layout(*model, layout, {data_path, "--train_iters=5", "--exit_interval=2", "--save", folder, "--bf16"});
      const StepLosses resumed =
          train_layout(*model, layout, {data_path, "--train_iters=5", "--load", folder, "--bf16"});
      EXPECT_EQ(resumed, StepLosses(straight.begin() + 2, straight.end())) << layout.name;
    }
  }
}

}  // namespace
}  // namespace megalith

// Configurations at toy width: what stays, what shrinks, and what is said of it.
#include "verify/toy_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "models/families.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

ConfigInputs inputs(const std::string& preset, const Words& more) {
  ConfigInputs inputs;
  inputs.config_root = std::filesystem::path(MEGALITH_SOURCE_DIR) / "configs";
  inputs.arguments = {"--config", (inputs.config_root / "models" / preset).string(), "--mock_data"};
  inputs.arguments.insert(inputs.arguments.end(), more.begin(), more.end());
  return inputs;
}

struct Toy {
  CheckedConfig checked;
  ToyWorld world;
  ToyConfig exact, configured;

  const Config& layout() const { return exact.layout->config; }
  const Config& one_rank() const { return exact.one_rank->config; }
};

Toy make_toy(const std::string& preset, const Words& more, int64_t most_ranks = 32) {
  Toy toy;
  toy.checked = resolve_for_check(inputs(preset, more), /*launched_ranks=*/1);
  toy.world = make_toy_world(toy.checked.resolved->config.parallel, toy.checked.world_size, most_ranks);
  toy.exact = make_toy_config(*toy.checked.resolved, toy.world, ToyPrecision::kExact, 3);
  toy.configured = make_toy_config(*toy.checked.resolved, toy.world, ToyPrecision::kConfigured, 1);
  return toy;
}

TEST(ToyConfig, KeepsTheLayoutOfALlama) {
  const Toy toy = make_toy("llama3.1_8B.yaml",
                           {"--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2",
                            "--context_parallel_size=2", "--sequence_parallel", "--use_distributed_optimizer",
                            "--overlap_grad_reduce", "--bf16", "--dry_run_world_size=64", "--global_batch_size=64"});
  EXPECT_EQ(toy.world.world_size, 16);
  EXPECT_EQ(toy.world.data_parallel_size(), 2);
  EXPECT_EQ(toy.world.cuts, Words{"data-parallel ranks 8 -> 2"});
  EXPECT_EQ(toy.exact.set_aside, Words{"bf16"});
  const Config& layout = toy.layout();
  EXPECT_EQ(layout.parallel.tensor_model_parallel_size, 2);
  EXPECT_EQ(layout.parallel.context_parallel_size, 2);
  EXPECT_TRUE(toy.exact.layout->derived.is_sequence_parallel);
  EXPECT_TRUE(layout.data_parallel.use_distributed_optimizer && layout.data_parallel.overlap_grad_reduce);
  EXPECT_EQ(layout.pipeline.pipeline_model_parallel_layout, "Et|tL");
  EXPECT_EQ(toy.exact.layout->derived.num_microbatches, 4);
  const ModelConfig& model = layout.model;
  EXPECT_EQ(family_for(model).name, "llama");
  EXPECT_TRUE(model.use_rope_scaling && model.group_query_attention);
  EXPECT_EQ(model.num_attention_heads, 2 * model.num_query_groups);
  EXPECT_EQ(model.num_query_groups % 2, 0);
  EXPECT_GT(model.padded_vocab_size(2), *model.vocab_size);
  EXPECT_EQ(toy.exact.layout->derived.dtype, at::kDouble);
  EXPECT_EQ(layout.runtime.kernels, Kernels::kReference);
  EXPECT_EQ(toy.configured.layout->derived.dtype, at::kFloat);
  EXPECT_EQ(toy.configured.layout->config.runtime.kernels, Kernels::kFused);
  EXPECT_EQ(toy.configured.one_rank->config.runtime.kernels, Kernels::kReference);
  // One rank: the same task, nothing spread.
  EXPECT_EQ(toy.exact.one_rank->derived.world_size, 1);
  EXPECT_EQ(toy.exact.one_rank->derived.global_batch_size, toy.exact.layout->derived.global_batch_size);
  EXPECT_EQ(toy.exact.one_rank->derived.num_microbatches, 1);
  EXPECT_FALSE(toy.one_rank().data_parallel.use_distributed_optimizer);
  EXPECT_EQ(toy.one_rank().model.hidden_size, model.hidden_size);
}

TEST(ToyConfig, LeavesLionOutWhereItWouldFollowRounding) {
  const Words words = {"--optimizer=lion", "--lion_beta2=0.95", "--dry_run_world_size=2"};
  const Toy rotated = make_toy("llama3.1_8B.yaml", words), biased = make_toy("gpt2.yaml", words);
  EXPECT_EQ(rotated.layout().optimizer.optimizer, OptimizerKind::kLion);
  EXPECT_EQ(rotated.exact.set_aside, Words{});
  EXPECT_EQ(biased.layout().optimizer.optimizer, OptimizerKind::kSgd);
  EXPECT_EQ(biased.exact.set_aside, Words{"optimizer lion"});
}

TEST(ToyConfig, TakesEachOptionAsItsDeclarationSays) {
  const Words words = {"--pipeline_model_parallel_size=2",
                       "--decoder_first_pipeline_num_layers=14",
                       "--expert_model_parallel_size=2",
                       "--bf16",
                       "--seed=77",
                       "--optimizer=muon",
                       "--muon_momentum=0.5",
                       "--reset_position_ids",
                       "--eod_mask_loss",
                       "--overlap_grad_reduce",
                       "--grad_reduce_in_bf16",
                       "--recompute_granularity=full",
                       "--recompute_method=uniform",
                       "--recompute_num_layers=3",
                       "--deterministic_mode",
                       "--moe_z_loss_coeff=0.001",
                       "--weight_decay=0.3",
                       "--log_interval=7",
                       "--adam_eps=1e-12",
                       "--dry_run_world_size=8"};
  const Toy toy = make_toy("deepseek_v2_lite.yaml", words);
  const OptionSet& asked = *toy.checked.resolved->options;
  int num_kept = 0;
  for (const auto& option : toy.exact.layout->options->options()) {
    const Option& theirs = *asked.find(option->name());
    const InToy what = option->traits().in_toy;
    if (what == InToy::kKept) {
      EXPECT_EQ(option->text(), theirs.text()) << option->name();
    } else if (what != InToy::kMade) {
      EXPECT_TRUE(option->is_default()) << option->name();
    }
    num_kept += what == InToy::kKept && !theirs.is_default() ? 1 : 0;
  }
  EXPECT_GT(num_kept, 15);
  EXPECT_EQ(toy.exact.set_aside, (Words{"bf16", "grad_reduce_in_bf16"}));
  EXPECT_FALSE(toy.layout().data.eod_mask_loss);
  EXPECT_EQ(toy.layout().train.seed, 77);
  // One rank has the same task, and nothing of how it is spread.
  EXPECT_EQ(toy.one_rank().optimizer.muon.muon_momentum, 0.5);
  EXPECT_FALSE(toy.one_rank().recompute.is_full() || toy.one_rank().data_parallel.overlap_grad_reduce);
}

TEST(ToyConfig, WithoutAWorldSizeDataParallelismIsTakenToBeThere) {
  const Toy toy = make_toy("demo.yaml", {"--micro_batch_size=16", "--global_batch_size=16"});
  EXPECT_FALSE(toy.checked.world_size.has_value());
  EXPECT_EQ(toy.world.world_size, 2);
  EXPECT_EQ(toy.world.data_parallel_size(), 2);
  EXPECT_TRUE(toy.world.cuts.empty());
  EXPECT_EQ(toy.layout().train.micro_batch_size, 2);
}

TEST(ToyConfig, AWindowStaysAWindow) {
  const Toy toy = make_toy("mistral_7B_v0.1.yaml", {"--context_parallel_size=2", "--dry_run_world_size=2"});
  for (const Config* config : {&toy.layout(), &toy.one_rank()}) {
    EXPECT_EQ(config->model.attention_window(), 3);
    EXPECT_LT(3, *config->train.seq_length / 2);  // some keys are before it, also on one of two ranks
  }
  EXPECT_EQ(family_for(toy.layout().model).name, "mistral");
}

TEST(ToyConfig, WindowsOfSomeLayersStayOfSome) {
  const Toy toy = make_toy("mistral_7B_v0.1.yaml", {"--window_attn_skip_freq=[0]*31+[1]", "--dry_run_world_size=2"});
  for (const Config* config : {&toy.layout(), &toy.one_rank()}) {
    const std::vector<int64_t> layers = config->model.layers_with_window();
    EXPECT_EQ(layers.front(), 0);
    EXPECT_EQ(layers.back(), 1);
  }
}

TEST(ToyConfig, AWorldOfOneStaysOne) {
  const Toy toy = make_toy("demo.yaml", {"--dry_run_world_size=1"});
  EXPECT_EQ(toy.world.world_size, 1);
}

TEST(ToyConfig, ExpertsComeWithTheRanksThatTheyNeed) {
  const Toy toy = make_toy("mixtral_8x7B_v0.1.yaml", {"--expert_model_parallel_size=8", "--dry_run_world_size=64",
                                                      "--use_distributed_optimizer"});
  EXPECT_EQ(toy.world.parallel.expert_model_parallel_size, 8);
  EXPECT_EQ(toy.world.world_size, 16);  // two replicas of each expert
  EXPECT_EQ(family_for(toy.layout().model).name, "mixtral");
  EXPECT_EQ(toy.layout().model.expert_ffn_size(), toy.layout().model.ffn_size());
  EXPECT_EQ(*toy.layout().model.num_experts % 8, 0);
  // The balance of experts is defined per microbatch.
  EXPECT_EQ(toy.one_rank().train.micro_batch_size, toy.layout().train.micro_batch_size);
}

TEST(ToyConfig, WhatNeedsTooManyRanksIsCutAndSaid) {
  const Toy toy = make_toy("deepseek_v3.yaml", {"--pipeline_model_parallel_size=16", "--expert_model_parallel_size=64",
                                                "--dry_run_world_size=2048", "--decoder_first_pipeline_num_layers=4",
                                                "--decoder_last_pipeline_num_layers=1", "--micro_batch_size=1"});
  EXPECT_LE(toy.world.world_size, 32);
  EXPECT_EQ(toy.world.parallel.pipeline_model_parallel_size, 4);
  EXPECT_EQ(toy.world.parallel.expert_model_parallel_size, 4);
  EXPECT_EQ(toy.world.cuts, (Words{"expert_model_parallel_size 64 -> 4", "pipeline_model_parallel_size 16 -> 4",
                                   "data-parallel ranks 128 -> 8"}));
  const ModelConfig& model = toy.layout().model;
  EXPECT_EQ(family_for(model).name, "deepseek_v3");
  EXPECT_EQ(toy.layout().pipeline.pipeline_model_parallel_layout, "Ett|tt|tt|tmL");
  EXPECT_FALSE(model.has_experts_at(0));
  EXPECT_TRUE(model.has_experts_at(model.num_layers - 1));
  EXPECT_EQ(model.num_prediction_modules(), 1);
  EXPECT_GT(model.shared_expert_size(), 0);
  EXPECT_EQ(model.moe_router_topk / *model.moe_router_group_topk, 2);
  EXPECT_GT(*model.num_experts, model.moe_router_topk);
  EXPECT_EQ(model.moe_router_dtype, RouterPrecision::kModel);
  EXPECT_EQ(toy.configured.layout->config.model.moe_router_dtype, RouterPrecision::kFp32);
}

// An adapter adds its product times at most a half, or its rounding would be the model's.
TEST(ToyConfig, AdaptersDoNotOutweighTheModel) {
  for (const bool by_root : {false, true}) {
    const Toy toy = make_toy("llama3.1_8B.yaml", {"--lora.enabled=true", fmt::format("--lora.use_rslora={}", by_root)});
    const LoraOptions& lora = toy.layout().lora;
    const auto dim = static_cast<double>(lora.dim);
    EXPECT_DOUBLE_EQ(lora.alpha / (by_root ? std::sqrt(dim) : dim), 0.5);
  }
}

TEST(ToyConfig, Gpt2StaysGpt2) {
  const Toy toy = make_toy("gpt2.yaml", {"--tensor_model_parallel_size=4", "--dry_run_world_size=8"});
  EXPECT_EQ(family_for(toy.layout().model).name, "gpt2");
  EXPECT_GE(toy.layout().model.max_position_embeddings, toy.exact.layout->derived.seq_length);
  EXPECT_EQ(toy.layout().model.attention_dropout, 0.1);
}

TEST(ToyConfig, VirtualStagesKeepTheirNumberAndOrder) {
  const Toy toy =
      make_toy("llama3.1_8B.yaml", {"--pipeline_model_parallel_size=4", "--num_virtual_stages_per_pipeline_rank=2",
                                    "--global_batch_size=16", "--dry_run_world_size=8"});
  EXPECT_EQ(toy.exact.layout->derived.pipeline.num_chunks, 2);
  EXPECT_EQ(toy.exact.layout->derived.pipeline.stages.size(), 8U);
  EXPECT_EQ(toy.exact.layout->derived.num_microbatches % 4, 0);
  const Toy vee = make_toy("llama3.1_8B.yaml", {"--pipeline_model_parallel_size=2", "--pp_algorithm=zbv"});
  EXPECT_EQ(vee.exact.layout->derived.pipeline.order, StageOrder::kVee);
  EXPECT_EQ(vee.layout().pipeline.pipeline_model_parallel_layout, "Et|t|t|tL");
}

TEST(ToyConfig, UnevenStagesStayUneven) {
  const Toy toy =
      make_toy("llama3.1_8B.yaml", {"--pipeline_model_parallel_size=4", "--account_for_embedding_in_pipeline_split",
                                    "--account_for_loss_in_pipeline_split", "--num_layers=30"});
  EXPECT_EQ(toy.layout().pipeline.pipeline_model_parallel_layout, "Et|tt|tt|tL");
  const Toy empty =
      make_toy("llama3.1_8B.yaml", {"--pipeline_model_parallel_size=3", "--pipeline_model_parallel_layout=E|t*31|tL"});
  EXPECT_EQ(empty.layout().pipeline.pipeline_model_parallel_layout, "E|tt|tL");
}

TEST(ToyConfig, RecomputationOfSomeLayersStaysOfSome) {
  const Toy block = make_toy("llama3.1_8B.yaml", {"--recompute_granularity=full", "--recompute_method=block",
                                                  "--recompute_num_layers=10", "--pipeline_model_parallel_size=2"});
  EXPECT_EQ(block.layout().pipeline.pipeline_model_parallel_layout, "Ett|ttL");
  EXPECT_EQ(block.layout().recompute.recompute_num_layers, 1);
  const Toy groups = make_toy(
      "llama3.1_8B.yaml", {"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=4"});
  EXPECT_EQ(groups.layout().model.num_layers, 4);
  EXPECT_EQ(groups.layout().recompute.recompute_num_layers, 2);
  const Toy some = make_toy("llama3.1_8B.yaml", {"--recompute_granularity=full", "--recompute_layer_ids=0,1,2,9"});
  EXPECT_EQ(some.layout().recompute.recompute_layer_ids, (std::vector<int64_t>{0, 1}));
  EXPECT_FALSE(some.one_rank().recompute.is_full());
}

TEST(ToyConfig, KindsOfContextParallelismAllAppear) {
  std::string kinds = "--cp_comm_type=a2a";
  for (int layer = 1; layer < 32; ++layer) kinds += layer % 3 == 0 ? ",a2a" : layer % 3 == 1 ? ",p2p" : ",all_gather";
  const Toy toy = make_toy("llama3.1_8B.yaml", {"--context_parallel_size=4", kinds});
  EXPECT_EQ(toy.layout().parallel.cp_comm_type, (Words{"a2a", "p2p", "all_gather", "a2a"}));
  EXPECT_EQ(toy.layout().model.num_query_groups % 4, 0);
  EXPECT_EQ(toy.exact.layout->derived.seq_length % 8, 0);
}

TEST(ToyConfig, ErrorsOfTheConfigurationAreItsOwn) {
  try {
    resolve_for_check(inputs("llama3.1_8B.yaml", {"--tensor_model_parallel_size=3"}), 1);
    FAIL() << "tensor_model_parallel_size 3 was taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("tensor_model_parallel_size 3 does not divide"), std::string::npos);
  }
  // A launcher's world must fit.
  EXPECT_THROW(resolve_for_check(inputs("llama3.1_8B.yaml", {"--tensor_model_parallel_size=4"}), 6), UserError);
  EXPECT_EQ(resolve_for_check(inputs("llama3.1_8B.yaml", {"--tensor_model_parallel_size=4"}), 8).world_size, 8);
}

TEST(ToyWorld, PartsOfDataParallelismAreTwoByTwo) {
  ParallelOptions options;
  options.num_distributed_optimizer_instances = 4;
  const ToyWorld toy = make_toy_world(options, 32, 32);
  EXPECT_EQ(toy.world_size, 4);
  EXPECT_EQ(toy.parallel.num_distributed_optimizer_instances, 2);
  EXPECT_EQ(toy.cuts, (Words{"num_distributed_optimizer_instances 4 -> 2", "data-parallel ranks 32 -> 4"}));
}

TEST(ToyWorld, HalvesOfContextParallelismShrinkTogether) {
  ParallelOptions options;
  options.context_parallel_size = 64;
  options.cp_comm_type = {"a2a+p2p"};
  options.hierarchical_context_parallel_sizes = {8, 8};
  const ToyWorld toy = make_toy_world(options, 64, 16);
  EXPECT_EQ(toy.parallel.context_parallel_size, 16);
  EXPECT_EQ(toy.parallel.hierarchical_context_parallel_sizes, (std::vector<int64_t>{4, 4}));
}

TEST(ToyWorld, TheSmallestWorldHoldsDenseLayersAndExperts) {
  ParallelOptions options;
  options.tensor_model_parallel_size = 2;
  options.pipeline_model_parallel_size = 3;
  EXPECT_EQ(smallest_world(options), 6);
  options.expert_model_parallel_size = 4;
  options.expert_tensor_parallel_size = 1;
  EXPECT_EQ(smallest_world(options), 12);
}

}  // namespace
}  // namespace megalith

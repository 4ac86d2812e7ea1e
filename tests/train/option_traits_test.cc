// Traits of options (OptionTraits), held to lists of names: the author of an option that comes or changes looks at it
// here once.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "train/config.h"

namespace megalith {
namespace {

using Names = std::set<std::string>;

Names names_with(const OptionSet& options, const std::function<bool(const Option&)>& has) {
  Names names;
  for (const auto& option : options.options()) {
    if (has(*option)) names.insert(option->name());
  }
  return names;
}

TEST(OptionTraits, WeightsDependOnTheModelsOptionsButThese) {
  ModelConfig model;
  const OptionSet options(model);
  const Names expected = {"max_position_embeddings", "make_vocab_size_divisible_by", "attention_dropout",
                          "hidden_dropout", "init_method_std", "embedding_init_method_std", "bos_token_id",
                          "eos_token_ids", "classifier_dropout", "label_names",
                          // Balance, limits and exchange of experts.
                          "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff",
                          "moe_input_jitter_eps", "moe_router_bias_update_rate", "moe_router_force_load_balancing",
                          "moe_token_dispatcher_type", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity",
                          "moe_token_drop_policy", "moe_shared_expert_overlap", "mtp_loss_scaling_factor",
                          // Comparison of vectors.
                          "retriever_score_scaling", "retriever_report_topk_accuracies"};
  EXPECT_EQ(names_with(options, [](const Option& option) { return !option.traits().changes_weights; }), expected);
}

TEST(OptionTraits, WeightsDependOnNoOptionThatIsNotTheModels) {
  ModelConfig model;
  Config config;
  const OptionSet of_model(model), all(config);
  EXPECT_EQ(names_with(all,
                       [&](const Option& option) {
                         return option.traits().changes_weights && of_model.find(option.name()) == nullptr;
                       }),
            Names{});
}

TEST(OptionTraits, NumbersDependOnAllButWhereFilesGoAndHowWorkIsSpread) {
  Config config;
  const OptionSet options(config);
  const Names groups = {"Checkpoints",
                        "Logging",
                        "TensorBoard",
                        "Weights & Biases",
                        "MLflow",
                        "Samples during training",
                        "Sampling",
                        "Index of blocks",
                        "Encoders of FLUX",
                        "Profiling",
                        "Parallelism",
                        "Data parallelism",
                        "Pipeline parallelism",
                        "Recomputation and offloading"};
  const Names others = {"keep_best",
                        "exit_interval",
                        "exit_duration_in_mins",
                        "num_workers",
                        "num_threads",
                        "gemm_tuning_file",
                        "fail_on_host_sync",
                        "cuda_graphs",
                        "cuda_graph_warmup_steps",
                        "keep_fp8_weight_transpose_cache",
                        "allow_oversubscription",
                        "optimizer_cpu_offload",
                        "optimizer_offload_fraction",
                        "allow_other_tokenizer",
                        "overlap_cpu_optimizer_d2h_h2d",
                        "check_determinism",
                        "check_types",
                        "fault_tolerance",
                        "fault_patience_s",
                        "memory_checkpoint_interval"};
  const Names expected = names_with(options, [&](const Option& option) {
    // Rounding of gradients on their way.
    if (option.name() == "grad_reduce_in_bf16" || option.name() == "main_grads_dtype") return false;
    return groups.contains(option.group()) || others.contains(option.name());
  });
  EXPECT_EQ(names_with(options, [](const Option& option) { return !option.traits().changes_numbers; }), expected);
  EXPECT_GT(expected.size(), 80U);
}

TEST(OptionTraits, AToySetsAsideOnlyPrecision) {
  Config config;
  const OptionSet options(config);
  EXPECT_EQ(names_with(options, [](const Option& option) { return option.traits().in_toy == InToy::kSetAside; }),
            (Names{"bf16", "fp16", "fp8_format", "fp4_format", "main_grads_dtype", "grad_reduce_in_bf16", "exp_avg_dtype",
                   "master_weights", "muon_fp32_matmul_prec", "lora.quantization"}));
}

TEST(OptionTraits, RanksMayDifferInThreadsWordsAndFilesOfTheirOwn) {
  Config config;
  const OptionSet options(config);
  const auto with = [&](ByRank what) {
    return names_with(options, [&](const Option& option) { return option.traits().by_rank == what; });
  };
  EXPECT_EQ(
      with(ByRank::kFree),
      (Names{"device", "num_threads", "num_workers", "data_cache_path", "gemm_tuning_file", "log_format", "log_style",
             "quiet", "verbose", "explain_options", "suggest_layout", "log_file", "profile_dir", "dump_pp_data_dir", "store_secret_file",
             // That the first three are given is compared.
             "record_file", "metrics_file", "tensorboard_dir", "loss_plot_file", "page_file", "mlperf_log_file"}));
  EXPECT_EQ(
      with(ByRank::kSameContents),
      (Names{"data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path",
             "per_split_data_args_path", "sft_data_path", "sft_valid_data_path", "titles_data_path", "tokenizer_model",
             "vocab_file", "merge_file", "load_hf", "adapter", "vae.path", "t5.path", "clip.path", "encoders.path"}));
}

TEST(OptionTraits, AGroupsTraitsHoldUnlessAnOptionSaysOtherwise) {
  struct Sample {
    int64_t plain = 1, other = 2, next = 3;
    void visit(OptionVisitor& v) {
      v.group("First", {.changes_weights = true, .changes_numbers = false, .in_toy = InToy::kKept});
      v.field("plain", plain, "One.");
      v.field("other", other, "Two.")
          .changes_weights(false)
          .changes_numbers(true)
          .in_toy(InToy::kMade)
          .by_rank(ByRank::kFree);
      v.group("Second");
      v.field("next", next, "Three.");
    }
  } sample;
  const OptionSet options(sample);
  const auto traits = [&](const char* name) { return options.find(name)->traits(); };
  EXPECT_TRUE(traits("plain").changes_weights && !traits("plain").changes_numbers);
  EXPECT_EQ(traits("plain").in_toy, InToy::kKept);
  EXPECT_TRUE(!traits("other").changes_weights && traits("other").changes_numbers);
  EXPECT_EQ(traits("other").in_toy, InToy::kMade);
  EXPECT_EQ(traits("other").by_rank, ByRank::kFree);
  EXPECT_EQ(traits("plain").by_rank, ByRank::kSame);
  EXPECT_TRUE(!traits("next").changes_weights && traits("next").changes_numbers);
  EXPECT_EQ(traits("next").in_toy, InToy::kDefault);
}

}  // namespace
}  // namespace megalith

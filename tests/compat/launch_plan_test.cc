// Variables of other tools' scripts: what each becomes, what is switched off, and what is refused in the user's words.
#include "compat/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "compat/launch_process.h"
#include "compat/tiny.h"
#include "config/known_names.h"
#include "core/strings.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "train/config.h"

namespace megalith {
namespace {

LaunchInputs on_gpus(FrontEnd front_end, std::vector<std::string> words, EnvironmentMap environment = {}) {
  LaunchInputs inputs;
  inputs.front_end = front_end;
  inputs.words = std::move(words);
  inputs.environment = std::move(environment);
  inputs.now = "now";
  inputs.count_gpus = [] { return 8; };
  return inputs;
}

LaunchPlan planned(FrontEnd front_end, std::vector<std::string> words, EnvironmentMap environment = {}) {
  LaunchPlan plan = plan_launch(on_gpus(front_end, std::move(words), std::move(environment)));
  for (const UserError& error : plan.errors) ADD_FAILURE() << error.what();
  return plan;
}

std::string option(const LaunchPlan& plan, std::string_view name) {
  const PlannedOption* found = plan.find(name);
  return found == nullptr ? "(none)" : found->value;
}

std::string errors_of(const LaunchPlan& plan) {
  std::string text;
  for (const UserError& error : plan.errors) text += fmt::format("{}\n", error.what());
  return text;
}

std::string errors_of(FrontEnd front_end, std::vector<std::string> words, EnvironmentMap environment = {}) {
  return errors_of(plan_launch(on_gpus(front_end, std::move(words), std::move(environment))));
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string notes_of(const LaunchPlan& plan) { return fmt::format("{}", fmt::join(plan.notes, "\n")); }

std::string export_of(const LaunchPlan& plan, std::string_view name) {
  for (const PlannedExport& one : plan.exports) {
    if (one.name == name) return one.value;
  }
  return "(none)";
}

TEST(LaunchPlan, DefaultsAreThoseOfTheScript) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {});
  EXPECT_EQ(plan.config, "llama3.1_70B");
  EXPECT_EQ(option(plan, "tensor_model_parallel_size"), "8");
  EXPECT_EQ(option(plan, "micro_batch_size"), "2");
  EXPECT_EQ(option(plan, "global_batch_size"), "8");
  EXPECT_EQ(option(plan, "seq_length"), "2048");
  EXPECT_EQ(option(plan, "train_iters"), "10");
  EXPECT_EQ(option(plan, "bf16"), "true");
  EXPECT_EQ(option(plan, "mock_data"), "true");
  EXPECT_EQ(option(plan, "fp8_format"), "(none)");
  EXPECT_EQ(option(plan, "recompute_granularity"), "(none)");
  EXPECT_EQ(option(planned(FrontEnd::kLlama2, {}), "seq_length"), "4096");
  EXPECT_EQ(option(planned(FrontEnd::kDeepseekV3, {}), "recompute_granularity"), "selective");
  EXPECT_EQ(option(planned(FrontEnd::kMixtral, {}), "expert_model_parallel_size"), "8");
}

TEST(LaunchPlan, EverySpellingIsTheSameVariable) {
  const std::vector<std::pair<std::string, std::string>> spellings = {
      {"TP=4", "tensor_model_parallel_size"},
      {"TP_SIZE=4", "tensor_model_parallel_size"},
      {"PP=4", "pipeline_model_parallel_size"},
      {"PP_SIZE=4", "pipeline_model_parallel_size"},
      {"CP=4", "context_parallel_size"},
      {"CP_SIZE=4", "context_parallel_size"},
      {"EP=4", "expert_model_parallel_size"},
      {"EP_SIZE=4", "expert_model_parallel_size"},
      {"ETP=4", "expert_tensor_parallel_size"},
      {"ETP_SIZE=4", "expert_tensor_parallel_size"},
      {"MBS=4", "micro_batch_size"},
      {"MICRO_BATCH_SIZE=4", "micro_batch_size"},
      {"BS=4", "global_batch_size"},
      {"GBS=4", "global_batch_size"},
      {"GLOBAL_BATCH_SIZE=4", "global_batch_size"},
      {"SEQ_LENGTH=4", "seq_length"},
      {"SEQ_LEN=4", "seq_length"},
      {"SEQLEN=4", "seq_length"},
      {"TOTAL_ITERS=4", "train_iters"},
      {"TRAIN_ITERS=4", "train_iters"},
  };
  for (const auto& [word, name] : spellings) {
    EXPECT_EQ(option(planned(FrontEnd::kDeepseekV3, {word}), name), "4") << word;
  }
}

TEST(LaunchPlan, SizesAreTakenWithAndWithoutTheirLetter) {
  for (const char* size : {"8", "8B", "8b"}) {
    EXPECT_EQ(planned(FrontEnd::kLlama3, {fmt::format("MODEL_SIZE={}", size)}).config, "llama3.1_8B") << size;
  }
  EXPECT_EQ(planned(FrontEnd::kMixtral, {"MODEL_SIZE=8x22B"}).config, "mixtral_8x22B_v0.1");
  EXPECT_TRUE(planned(FrontEnd::kLlama2, {"MODEL_SIZE=tiny"}).is_tiny);
}

TEST(LaunchPlan, LaterSourcesWin) {
  LaunchInputs inputs = on_gpus(FrontEnd::kLlama3, {"TP=4", "--bf16"}, {{"MBS", "3"}, {"TP", "2"}});
  inputs.env_file = "# comment\nMBS=7\nexport BS='16'\nTOTAL_ITERS=20 # twenty\nMINE=x\n";
  const LaunchPlan plan = plan_launch(inputs);
  EXPECT_EQ(errors_of(plan), "");
  EXPECT_EQ(option(plan, "tensor_model_parallel_size"), "4");  // a word beats the environment
  EXPECT_EQ(option(plan, "micro_batch_size"), "3");            // which beats .env
  EXPECT_EQ(option(plan, "global_batch_size"), "16");
  EXPECT_EQ(option(plan, "train_iters"), "20");
  EXPECT_EQ(export_of(plan, "MINE"), "x");
  EXPECT_EQ(plan.arguments().back(), "--bf16");  // options come last, and so beat all
}

TEST(LaunchPlan, AnEmptyVariableIsUnset) {
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {}, {{"TP", ""}, {"TRAIN_LOG", ""}}), "tensor_model_parallel_size"), "8");
}

TEST(LaunchPlan, CountsMayHaveAPointAsCvsWritesThem) {
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {"BS=128.0"}), "global_batch_size"), "128");
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"BS=12.5"}), "BS=12.5 is not a whole number"));
}

TEST(LaunchPlan, FsdpSwitchesOffWhatItReplacesAndSaysSo) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"FSDP=1", "TP=8"});
  EXPECT_EQ(option(plan, "use_torch_fsdp2"), "true");
  EXPECT_EQ(option(plan, "tensor_model_parallel_size"), "1");
  for (const char* name : {"sequence_parallel", "use_distributed_optimizer", "overlap_param_gather"}) {
    EXPECT_EQ(option(plan, name), "(none)") << name;
    EXPECT_TRUE(contains(notes_of(plan), fmt::format("{} is off", name))) << notes_of(plan);
  }
  EXPECT_TRUE(contains(notes_of(plan), "TP is 1 instead of 8"));
  EXPECT_EQ(export_of(plan, "CUDA_DEVICE_MAX_CONNECTIONS"), "(none)");
}

TEST(LaunchPlan, FsdpKeepsPipelinesExpertsAndHalfPrecision) {
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {"FSDP=1", "PP=2"}), "pipeline_model_parallel_size"), "2");
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {"FSDP=1", "PR=fp16"}), "fp16"), "true");
  EXPECT_EQ(option(planned(FrontEnd::kMixtral, {"FSDP=1"}), "expert_model_parallel_size"),
            option(planned(FrontEnd::kMixtral, {}), "expert_model_parallel_size"));
}

TEST(LaunchPlan, RecomputationOfAllLayersCountsThem) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"RECOMPUTE=1", "MODEL_SIZE=70"});
  EXPECT_EQ(option(plan, "recompute_granularity"), "full");
  EXPECT_EQ(option(plan, "recompute_method"), "block");
  EXPECT_EQ(option(plan, "recompute_num_layers"), "80");
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {"RECOMPUTE=1", "NUM_LAYERS=4"}), "recompute_num_layers"), "4");
  EXPECT_EQ(option(planned(FrontEnd::kDeepseekV3, {"AC=full"}), "recompute_num_layers"), "1");
  EXPECT_EQ(option(planned(FrontEnd::kDeepseekV2, {"AC=full"}), "recompute_method"), "uniform");
  EXPECT_EQ(option(planned(FrontEnd::kDeepseekV3, {"AC=none"}), "recompute_granularity"), "(none)");
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"RECOMPUTE=1", "AC=sel"}), "RECOMPUTE=1 and AC=sel disagree"));
}

TEST(LaunchPlan, Fp8HasTheScriptsOwnRecipe) {
  for (const char* word : {"TE_FP8=1", "PR=fp8", "TE_FP8=true"}) {
    const LaunchPlan plan = planned(FrontEnd::kLlama3, {word});
    EXPECT_EQ(option(plan, "fp8_format"), "hybrid") << word;
    EXPECT_EQ(option(plan, "fp8_amax_history_len"), "1024") << word;
    EXPECT_EQ(option(plan, "fp8_amax_compute_algo"), "max") << word;
    EXPECT_EQ(option(plan, "bf16"), "true") << word;
  }
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"TE_FP8=1", "PR=bf16"}), "PR=bf16 and TE_FP8=1 disagree"));
}

TEST(LaunchPlan, AProxyKeepsTheFirstLayersWithoutExperts) {
  const LaunchPlan plan = planned(FrontEnd::kDeepseekV3, {"MODEL_SIZE=671B", "NUM_LAYERS=5"});
  EXPECT_EQ(option(plan, "moe_layer_freq"), "([0]*3+[1]*2)");
  EXPECT_EQ(
      option(planned(FrontEnd::kDeepseekV3, {"MODEL_SIZE=671B", "NUM_LAYERS=5", "MOE_LAYER_FREQ=1"}), "moe_layer_freq"),
      "1");
  EXPECT_EQ(option(planned(FrontEnd::kDeepseekV3, {"MODEL_SIZE=671B"}), "moe_layer_freq"), "(none)");
}

TEST(LaunchPlan, DataIsNeededWithoutMockData) {
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"MOCK_DATA=0"}), "MOCK_DATA=0 needs DATA_PATH"));
  EXPECT_TRUE(
      contains(errors_of(FrontEnd::kLlama3, {"MOCK_DATA=0", "DATA_PATH=/nowhere/a"}), "there is no /nowhere/a.idx"));
  LaunchInputs inputs = on_gpus(FrontEnd::kLlama3, {"MOCK_DATA=0", "DATA_PATH=0.3 /d/a 0.7 /d/b"});
  inputs.exists = [](const std::string& path) { return path == "/d/a.idx" || path == "/d/b.idx"; };
  const LaunchPlan plan = plan_launch(inputs);
  EXPECT_EQ(errors_of(plan), "");
  const std::vector<std::string> words = plan.arguments();
  const auto at = std::find(words.begin(), words.end(), "--data_path");
  ASSERT_LT(at + 4, words.end());
  EXPECT_EQ(std::vector<std::string>(at + 1, at + 5), (std::vector<std::string>{"0.3", "/d/a", "0.7", "/d/b"}));
}

TEST(LaunchPlan, ATokenizerIsNotOpenedForMadeUpTokens) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {}, {{"TOKENIZER_MODEL", "NousResearch/Meta-Llama-3-8B"}});
  EXPECT_EQ(option(plan, "tokenizer_model"), "(none)");
  EXPECT_TRUE(contains(notes_of(plan), "TOKENIZER_MODEL=NousResearch/Meta-Llama-3-8B: not opened"));
}

TEST(LaunchPlan, TokensAreNeitherShownNorPassedOn) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {}, {{"HF_TOKEN", "hf_secret"}});
  EXPECT_FALSE(contains(notes_of(plan), "hf_secret"));
  EXPECT_FALSE(contains(fmt::format("{}", fmt::join(plan.arguments(), " ")), "hf_secret"));
  for (const PlannedExport& one : plan.exports) EXPECT_NE(one.is_shown, one.name == "HF_TOKEN") << one.name;
}

TEST(LaunchPlan, ExportsAreKeptWhenSet) {
  EXPECT_EQ(export_of(planned(FrontEnd::kLlama3, {}), "NCCL_PROTO"), "Simple");
  EXPECT_EQ(export_of(planned(FrontEnd::kLlama3, {}, {{"NCCL_PROTO", "LL"}}), "NCCL_PROTO"), "LL");
  EXPECT_EQ(export_of(planned(FrontEnd::kLlama3, {}), "HSA_NO_SCRATCH_RECLAIM"), "1");
}

TEST(LaunchPlan, LogsLieWhereTheScriptsHaveThem) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"MODEL_SIZE=8", "TP=1", "EXP_NAME=mine"});
  EXPECT_EQ(*plan.train_log,
            "experiment/1nodes_rank0_train_8B_mbs2_bs8_tp1_pp1_cp1_iter10/TE_FP8_0/now/output_mine.log");
  EXPECT_EQ(*planned(FrontEnd::kLlama3, {"LOG_DIR=/logs"}).train_log, "/logs/output_perf.log");
  EXPECT_EQ(*planned(FrontEnd::kLlama3, {"TRAIN_LOG=/a.log"}).train_log, "/a.log");
  EXPECT_FALSE(planned(FrontEnd::kLlama3, {"TEE_OUTPUT=0"}).tees);
}

TEST(LaunchPlan, ProfilingTracesTwoIterations) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"ENABLE_PROFILING=1", "LOG_DIR=/logs"});
  EXPECT_EQ(option(plan, "profile"), "true");
  EXPECT_EQ(option(plan, "profile_step_start"), "6");
  EXPECT_EQ(option(plan, "profile_step_end"), "7");
  EXPECT_EQ(option(plan, "tensorboard_dir"), "/logs");
}

TEST(LaunchPlan, SlowOperatorsAreSaidToBeSlow) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"USE_FLASH_ATTN=0"});
  EXPECT_EQ(option(plan, "attention_backend"), "reference");
  EXPECT_TRUE(contains(notes_of(plan), "slow"));
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {"--transformer-impl", "local"}), "kernels"), "reference");
  EXPECT_EQ(option(planned(FrontEnd::kLlama3, {}), "kernels"), "(none)");
}

TEST(LaunchPlan, RanksFollowFromMachinesAndDevices) {
  EXPECT_EQ(planned(FrontEnd::kLlama3, {}).world_size(), 8);
  EXPECT_EQ(planned(FrontEnd::kLlama3, {"GPUS_PER_NODE=2"}).world_size(), 2);
  EXPECT_EQ(planned(FrontEnd::kLlama3, {"NNODES=2", "NODE_RANK=1", "MASTER_ADDR=node0"}).world_size(), 16);
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"NNODES=2"}), "NNODES=2 needs MASTER_ADDR"));
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"NNODES=2", "NODE_RANK=2", "MASTER_ADDR=a"}), "NODE_RANK=2"));
  EXPECT_TRUE(contains(errors_of(FrontEnd::kLlama3, {"GPUS_PER_NODE=9"}), "GPUS_PER_NODE=9: this machine has 8 GPUs"));
  LaunchInputs processor = on_gpus(FrontEnd::kLlama3, {});
  processor.count_gpus = [] { return 0; };
  EXPECT_EQ(plan_launch(processor).world_size(), 1);
}

TEST(LaunchPlan, ADryRunAsksTheMachineForNothing) {
  LaunchInputs inputs = on_gpus(FrontEnd::kLlama3, {"DRY_RUN=1", "NNODES=2"});
  inputs.count_gpus = []() -> int { throw std::logic_error("asked for GPUs"); };
  const LaunchPlan plan = plan_launch(inputs);
  EXPECT_EQ(errors_of(plan), "");
  EXPECT_EQ(plan.dry_run, DryRunKind::kText);
  EXPECT_EQ(plan.world_size(), 16);
  EXPECT_EQ(planned(FrontEnd::kLlama3, {"DRY_RUN=json"}).dry_run, DryRunKind::kJson);
}

TEST(LaunchPlan, ADryRunKnowsWhereARunWouldGo) {
  const LaunchPlan local = planned(FrontEnd::kLlama3, {"DRY_RUN=1", "CONTAINER=1", "DOCKER_IMAGE=a"});
  EXPECT_TRUE(local.would_use_container && !local.would_use_slurm && !local.uses_container);
  const LaunchPlan slurm = planned(FrontEnd::kLlama3, {"DRY_RUN=1", "SLURM=1", "NNODES=2"});
  EXPECT_TRUE(slurm.would_use_slurm && !slurm.would_use_container && !slurm.uses_slurm);
  EXPECT_TRUE(planned(FrontEnd::kLlama3, {"DRY_RUN=1", "SLURM=1", "DOCKER_IMAGE=a"}).would_use_container);
  EXPECT_FALSE(planned(FrontEnd::kLlama3, {"SLURM=1"}).would_use_slurm);
  const EnvironmentMap job = {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "16"}};
  const LaunchPlan batch = planned(FrontEnd::kLlama3, {"DRY_RUN=1"}, job);
  EXPECT_TRUE(batch.would_use_slurm);
  EXPECT_EQ(batch.num_nodes, 16) << "as a start takes them";
}

TEST(LaunchPlan, SlurmSaysWhichMachineThisIs) {
  const EnvironmentMap batch = {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "16"}};
  const LaunchPlan script = planned(FrontEnd::kDeepseekV3, {}, batch);
  EXPECT_TRUE(script.uses_slurm);
  EXPECT_EQ(script.num_nodes, 16);
  EnvironmentMap task = batch;
  task.insert({{"SLURM_STEP_ID", "0"}, {"SLURM_NODEID", "3"}, {"SLURM_STEP_NODELIST", "node[04-19]"}});
  const LaunchPlan started = planned(FrontEnd::kDeepseekV3, {"SLURM=1"}, task);
  EXPECT_FALSE(started.uses_slurm);
  EXPECT_EQ(started.node_rank, 3);
  EXPECT_EQ(started.num_nodes, 16);
  EXPECT_EQ(started.master_address, "node04");
}

TEST(LaunchPlan, PrimusTakesItsFileAndWords) {
  LaunchInputs inputs = on_gpus(FrontEnd::kPrimus, {"--train_iters", "50", "lr=1e-5"}, {{"EXP", "x/a.yaml"}});
  inputs.exists = [](const std::string& path) { return path == "x/a.yaml"; };
  inputs.files_of = [](const std::string&) { return std::vector<std::string>{"a.yaml", "b.yaml"}; };
  const LaunchPlan plan = plan_launch(inputs);
  EXPECT_EQ(errors_of(plan), "");
  EXPECT_EQ(plan.arguments(), (std::vector<std::string>{"--config", "x/a.yaml", "--log_format", "megatron",
                                                        "--train_iters", "50", "lr=1e-5"}));
  EXPECT_EQ(*plan.train_log, "output/log_torchrun_pretrain_a.txt");
  EXPECT_EQ(export_of(plan, "HIP_VISIBLE_DEVICES"), "0,1,2,3,4,5,6,7");
  EXPECT_EQ(export_of(plan, "NVTE_CK_USES_BWD_V3"), "0");
  inputs.environment["EXP"] = "x/aa.yaml";
  EXPECT_TRUE(contains(errors_of(plan_launch(inputs)), "Did you mean x/a.yaml?"));
  inputs.environment.clear();
  EXPECT_TRUE(contains(errors_of(plan_launch(inputs)), "EXP is not set"));
}

TEST(LaunchPlan, BadWordsAreRefusedInTheUsersSpelling) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> table = {
      {{"PR=int8"}, "PR=int8 is not one of bf16, fp16, fp8"},
      {{"MODEL_SIZE=9"}, "MODEL_SIZE=9 is not a size of llama3"},
      {{"AC=some"}, "AC=some is not one of none, sel, full"},
      {{"TP=two"}, "TP=two is not a whole number"},
      {{"TP_SIZE=0"}, "TP_SIZE=0 is not a whole number of at least 1"},
      {{"FSDP=yes"}, "FSDP=yes is not a switch"},
      {{"MBS=2", "MICRO_BATCH_SIZE=4"}, "MBS=2 and MICRO_BATCH_SIZE=4 disagree"},
      {{"TOTAL_ITER=4"}, "unknown variable TOTAL_ITER. Did you mean TOTAL_ITERS?"},
      {{"EXP=a.yaml"}, "EXP is a variable of primus; llama3 has no use for it"},
      {{"TE_FP4=1"}, "TE_FP4=1 is not supported"},
      {{"OPTIMIZER=lion"}, "OPTIMIZER=lion is not one of adam, sgd"},
      {{"DRY_RUN=yaml"}, "DRY_RUN=yaml is not one of 0, 1, json, true, false"},
  };
  for (const auto& [words, message] : table) {
    const std::string said = errors_of(FrontEnd::kLlama3, words);
    EXPECT_TRUE(contains(said, message)) << said << "instead of " << message;
  }
}

TEST(LaunchPlan, WithoutTorchrunSeveralRanksAreRefused) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {});
  try {
    training_command(plan, {.program = "megalith", .torchrun = std::nullopt, .container_tool = {}, .folder = "/"}, {});
    FAIL() << "eight ranks without torchrun";
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "8 ranks are started by torchrun, which is neither in PATH nor beside LibTorch");
    EXPECT_TRUE(contains(error.remedy(), "GPUS_PER_NODE=1"));
  }
}

TEST(LaunchPlan, AllProblemsAreToldTogether) {
  const LaunchPlan plan = plan_launch(on_gpus(FrontEnd::kLlama3, {"PR=int8", "AC=some", "BOGUS=1", "MOCK_DATA=0"}));
  EXPECT_EQ(plan.errors.size(), 4U) << errors_of(plan);
}

TEST(LaunchPlan, ALineOfTheEnvFileMustBeAnAssignment) {
  LaunchInputs inputs = on_gpus(FrontEnd::kLlama3, {});
  inputs.env_file = "TP=1\nhf_secret_pasted\n";
  const std::string said = errors_of(plan_launch(inputs));
  EXPECT_TRUE(contains(said, ".env:2 is no assignment")) << said;
  EXPECT_FALSE(contains(said, "hf_secret"));
}

TEST(LaunchPlan, ErrorsOfTheTrainerAreSaidInTheUsersWords) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"TP_SIZE=3"});
  const UserError said = in_users_words(
      UserError("tensor_model_parallel_size 3 does not divide num_attention_heads 64",
                "set --tensor_model_parallel_size to a divisor; expert_tensor_model_parallel_size is another"),
      plan);
  EXPECT_EQ(said.message(), "TP_SIZE=3 does not divide num_attention_heads 64");
  EXPECT_EQ(said.remedy(), "set TP_SIZE to a divisor; expert_tensor_model_parallel_size is another");
}

TEST(LaunchPlan, WhatTheUserTypedIsNotTranslated) {
  const LaunchPlan plan = planned(FrontEnd::kLlama3, {"TP=2", "MBS=2", "--micro-batch-size", "4"});
  // In quotation marks stands an option to type, and micro_batch_size is the user's own.
  EXPECT_EQ(in_users_words(UserError("unknown option. Did you mean 'tensor_model_parallel_size'?"), plan).message(),
            "unknown option. Did you mean 'tensor_model_parallel_size'?");
  EXPECT_EQ(in_users_words(UserError("Did you mean '--tensor_model_parallel_size'?"), plan).message(),
            "Did you mean '--tensor_model_parallel_size'?");
  EXPECT_EQ(in_users_words(UserError("micro_batch_size 4 does not fit TP"), plan).message(),
            "micro_batch_size 4 does not fit TP");
}

TEST(ScriptVariables, EveryRowCanBeUsed) {
  Config config;
  const OptionSet options(config);
  std::set<std::string_view> spellings;
  for (const ScriptVariable& row : script_variables()) {
    for (const std::string_view one : row.spellings) EXPECT_TRUE(spellings.insert(one).second) << one << " twice";
    EXPECT_FALSE(row.help.empty()) << row.name();
    EXPECT_FALSE(row.source.empty()) << row.name();
    EXPECT_EQ(row.kind == VariableKind::kOption, options.find(row.option) != nullptr) << row.name();
    const bool has_reason = row.kind == VariableKind::kNoEffect || row.kind == VariableKind::kRefused;
    EXPECT_EQ(has_reason, !row.reason.empty()) << row.name();
    EXPECT_EQ(row.type == VariableType::kWord, !row.words.empty()) << row.name();
  }
}

TEST(ScriptVariables, WhatAScriptAlwaysSaysAreOptions) {
  Config config;
  const OptionSet options(config);
  for (const FrontEndRow& row : front_ends()) {
    for (const auto& [name, value] : row.fixed) {
      Option* option = options.find(name);
      ASSERT_NE(option, nullptr) << name;
      EXPECT_NO_THROW(option->set(value, {OptionLayer::kCommandLine, "table"})) << name << " " << value;
    }
  }
}

// As `megalith launch` reads a dry run's arguments.
ConfigInputs dry_inputs(const std::vector<std::string>& arguments, int world_size) {
  ConfigInputs inputs;
  inputs.config_root = test::source_dir() / "configs";
  inputs.environment["HF_HUB_OFFLINE"] = "1";
  inputs.arguments = arguments;
  inputs.arguments.emplace_back("--dry_run=true");
  inputs.arguments.push_back(fmt::format("--dry_run_world_size={}", world_size));
  return inputs;
}

// The configuration, or null and what is wrong.
std::pair<std::unique_ptr<Resolved>, std::string> try_arguments(const std::vector<std::string>& arguments, int ranks) {
  try {
    return {resolve_config(all_kinds(), dry_inputs(arguments, ranks), ranks), ""};
  } catch (const std::exception& error) {
    return {nullptr, error.what()};
  }
}

// Every script, with the words that it cannot do without. A variable that a script lacks is said as an option.
TEST(LaunchPlan, AToyOfEveryLayoutThatAScriptTakesIsTakenToo) {
  const std::string experiments = (test::source_dir() / "examples/megatron/configs/MI300X").string() + "/";
  std::vector<std::pair<FrontEnd, std::vector<std::string>>> scripts;
  for (const FrontEndRow& row : front_ends()) {
    if (row.id != FrontEnd::kBenchmarkSetup && row.id != FrontEnd::kPrimus && row.id != FrontEnd::kBenchmark) {
      const bool is_deep = row.id == FrontEnd::kDeepseekV3;
      scripts.push_back({row.id, is_deep
                                     ? std::vector<std::string>{"MODEL_SIZE=671", "NUM_LAYERS=32", "MOE_LAYER_FREQ=1"}
                                     : std::vector<std::string>{}});
    }
  }
  for (const char* file : {"llama3.1_8B-BF16", "mixtral_8x7B_v0.1-BF16", "deepseek_v3-BF16"}) {
    scripts.push_back({FrontEnd::kPrimus, {fmt::format("EXP={}{}-pretrain.yaml", experiments, file)}});
  }
  for (const char* mode : {"pretrain", "finetune_lora"}) {
    scripts.push_back({FrontEnd::kBenchmark, {"-t", mode, "-m", "Llama-3.1-8B"}});
  }
  const std::vector<std::pair<std::string, std::string>> axes = {
      {"TP=2", "--tensor_model_parallel_size=2"},
      {"PP=2", "--pipeline_model_parallel_size=2"},
      {"CP=2", "--context_parallel_size=2"},
      {"EP=2", "--expert_model_parallel_size=2"},
      {"FSDP=1", "--use_torch_fsdp2"},
      {"TE_FP8=1", "--fp8_format=hybrid"},
  };
  constexpr size_t kPipeline = 1;
  int num_toys = 0, num_pipelines = 0;
  for (const auto& [front_end, words] : scripts) {
    for (size_t i = 0; i < axes.size(); ++i) {
      // Alone, and beside a pipeline, whose stages of a toy are another layout.
      for (const size_t j : std::set<size_t>{i, kPipeline}) {
        LaunchInputs inputs = on_gpus(front_end, words);
        inputs.words.emplace_back("DRY_RUN=1");
        if (has(kRocmScripts, front_end)) inputs.words.insert(inputs.words.end(), {"MBS=1", "BS=64"});
        if (has(kRocmScripts, front_end) && i != 0) inputs.words.emplace_back("TP=1");
        inputs.exists = [](const std::string& path) { return std::filesystem::exists(path); };
        inputs.tree = test::source_dir().string() + "/";
        for (const size_t axis : std::set<size_t>{i, j}) {
          const ScriptVariable* variable = find_script_variable(axes[axis].first.substr(0, axes[axis].first.find('=')));
          const bool is_known = variable != nullptr && variable->acts_in(front_end);
          inputs.words.push_back(is_known ? axes[axis].first : axes[axis].second);
        }
        // Some pairs are refused: T5 with a sequence that is cut.
        const LaunchPlan whole = plan_launch(inputs);
        if (!whole.errors.empty()) continue;
        if (try_arguments(whole.arguments_without_inputs(), whole.world_size()).first == nullptr) continue;
        inputs.words.emplace_back("TINY=1");
        const LaunchPlan plan = plan_launch(inputs);
        EXPECT_EQ(errors_of(plan), "");
        const int ranks = plan.world_size();  // a toy of a script for many machines has one
        std::vector<std::string> arguments = plan.arguments_without_inputs();
        const auto add = [&](const std::vector<std::string>& more) {
          arguments.insert(arguments.end(), more.begin(), more.end());
        };
        Resolved first(all_kinds());
        try_resolve(*first.options, dry_inputs(arguments, ranks));
        add(fitting_layout(first.config.parallel, ranks));
        auto [resolved, errors] = try_arguments(arguments, ranks);
        if (resolved != nullptr) {
          add(make_tiny(*resolved).options);
          errors = try_arguments(arguments, ranks).second;
        }
        EXPECT_EQ(errors, "") << row_of(front_end).name << ": " << fmt::format("{}", fmt::join(inputs.words, " "));
        ++num_toys;
        num_pipelines += i == kPipeline || j == kPipeline;
      }
    }
  }
  EXPECT_GT(num_toys, 90);
  EXPECT_GT(num_pipelines, 35);
}

}  // namespace
}  // namespace megalith

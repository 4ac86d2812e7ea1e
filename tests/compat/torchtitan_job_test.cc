// Job files of torchtitan: one resolves to the configuration that the same options give, what it does not say has
// torchtitan's own value, and what cannot be done is refused with its line.
#include "compat/torchtitan_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "core/file.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/config.h"

namespace megalith {
namespace {

// As torchtitan ships it for Llama 3.1 8B, v0.2.
constexpr const char* kJob8B = R"(
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[metrics]
log_freq = 10
enable_tensorboard = true
save_tb_folder = "tb"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2

[compile]
enable = false

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
)";

ConfigInputs job_inputs(std::vector<std::string> arguments) {
  ConfigInputs inputs;
  inputs.arguments = std::move(arguments);
  inputs.config_root = test::source_dir() / "configs";
  inputs.readers = {{".toml", read_torchtitan_job}};
  return inputs;
}

class TorchtitanJob : public ::testing::Test {
 protected:
  std::string write_job(const std::string& text) {
    const std::string file = folder_.path() / "job.toml";
    write_file_atomic(file, text);
    return file;
  }

  std::unique_ptr<Resolved> resolve_job(const std::string& text, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--config", write_job(text), "--mock_data"});
    return resolve_config(all_kinds(), job_inputs(std::move(more)), 8);
  }

  std::string refusal_of(const std::string& text) {
    try {
      resolve_job(text);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  test::TemporaryFolder folder_;
};

std::map<std::string, std::string> values_of(const Resolved& resolved) {
  std::map<std::string, std::string> values;
  for (const auto& option : resolved.options->options()) values[option->name()] = option->text();
  return values;
}

std::string text_of(const Resolved& resolved, const std::string& option) {
  return resolved.options->find(option)->text();
}

TEST_F(TorchtitanJob, ResolvesToTheSameConfigurationAsItsOptions) {
  const auto from_file = resolve_job(kJob8B);
  const auto from_options = resolve_config(all_kinds(), job_inputs({"--config",
                                                       "llama3.1_8B",
                                                       "--mock_data",
                                                       "--bf16",
                                                       "--seq_length=8192",
                                                       "--micro_batch_size=1",
                                                       "--train_iters=1000",
                                                       "--lr=3e-4",
                                                       "--min_lr=0",
                                                       "--lr_warmup_iters=200",
                                                       "--lr_decay_style=linear",
                                                       "--adam_beta1=0.9",
                                                       "--adam_beta2=0.95",
                                                       "--adam_eps=1e-8",
                                                       "--weight_decay=0.1",
                                                       "--clip_grad=1",
                                                       "--log_interval=10",
                                                       "--use_torch_fsdp2",
                                                       "--tensor_model_parallel_size=2",
                                                       "--sequence_parallel",
                                                       "--recompute_granularity=selective",
                                                       "--eval_iters=0",
                                                       "--tensorboard_dir=outputs/tb"}),
                                           8);
  EXPECT_EQ(values_of(*from_file), values_of(*from_options));
  EXPECT_EQ(from_file->derived.data_parallel_size, 4);
  EXPECT_EQ(from_file->derived.global_batch_size, 4);
}

TEST_F(TorchtitanJob, WhatTheFileDoesNotSayIsTorchtitans) {
  const auto resolved = resolve_job("[model]\nname = \"llama3\"\n");
  const std::map<std::string, std::string> expected = {
      {"num_layers", "6"},
      {"hidden_size", "256"},
      {"ffn_hidden_size", "768"},
      {"vocab_size", "2048"},
      {"lr", "0.0008"},
      {"lr_warmup_iters", "200"},
      {"adam_beta2", "0.95"},
      {"train_iters", "10000"},
      {"seq_length", "2048"},
      {"micro_batch_size", "8"},
      {"weight_decay", "0.1"},
      {"eval_iters", "0"},
      {"clip_grad", "1"},
      {"use_torch_fsdp2", "true"},
      {"bf16", "true"},
      {"log_interval", "10"},
      {"use_rope_scaling", "true"},
      {"recompute_granularity", "selective"},
      {"save", "null"},
  };
  for (const auto& [name, value] : expected) EXPECT_EQ(text_of(*resolved, name), value) << name;
}

TEST_F(TorchtitanJob, OptionsOfTheCommandLineWin) {
  const auto resolved = resolve_job(kJob8B, {"--training.steps", "7", "--lr_warmup_iters", "2", "--num_layers", "4"});
  EXPECT_EQ(resolved->derived.train_iters, 7);
  EXPECT_EQ(resolved->config.model.num_layers, 4);
}

TEST_F(TorchtitanJob, SchedulesBatchesAndCheckpointsAreTranslated) {
  const auto resolved = resolve_job(R"(
[model]
flavor = "debugmodel"
converters = ["float8"]
[training]
steps = 100
local_batch_size = 4
[lr_scheduler]
warmup_steps = 10
decay_ratio = 0.2
decay_type = "sqrt"
min_lr_factor = 0.1
[optimizer]
lr = 1e-3
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "GPipe"
data_parallel_shard_degree = 4
fsdp_reshard_after_forward = "never"
[checkpoint]
enable = true
interval = 50
keep_latest_k = 3
async_mode = "async"
[activation_checkpoint]
mode = "full"
[debug]
seed = 7
[quantize.linear.float8]
recipe_name = "tensorwise"
filter_fqns = ["output"]
)");
  const std::map<std::string, std::string> expected = {
      {"lr_decay_style", "WSD"},
      {"lr_wsd_decay_iters", "20"},
      {"lr_wsd_decay_style", "minus_sqrt"},
      {"min_lr", "0.0001"},
      {"pipeline_model_parallel_size", "2"},
      {"pp_algorithm", "gpipe"},
      {"micro_batch_size", "1"},
      {"global_batch_size", "16"},
      {"use_torch_fsdp2", "true"},
      {"torch_fsdp2_reshard_after_forward", "false"},
      {"save", "outputs/checkpoint"},
      {"save_interval", "50"},
      {"keep_last", "3"},
      {"async_save", "true"},
      {"recompute_granularity", "full"},
      {"recompute_method", "uniform"},
      {"recompute_num_layers", "1"},
      {"seed", "7"},
      {"fp8_format", "hybrid"},
      {"fp8_recipe", "tensorwise"},
  };
  for (const auto& [name, value] : expected) EXPECT_EQ(text_of(*resolved, name), value) << name;
}

TEST_F(TorchtitanJob, ShardingOverSomeRanksAndKeptWeightsAreTranslated) {
  const auto resolved = resolve_job(R"(
[training]
global_batch_size = 32
local_batch_size = 2
[parallelism]
data_parallel_shard_degree = 4
data_parallel_replicate_degree = 2
fsdp_reshard_after_forward = "never"
)");
  EXPECT_EQ(text_of(*resolved, "use_torch_fsdp2"), "true");
  EXPECT_EQ(text_of(*resolved, "num_distributed_optimizer_instances"), "2");
  EXPECT_EQ(text_of(*resolved, "torch_fsdp2_reshard_after_forward"), "false");
  EXPECT_EQ(resolved->derived.num_microbatches, 2);
}

TEST_F(TorchtitanJob, KeysWithoutACounterpartAreNamed) {
  const auto resolved = resolve_job(kJob8B);
  std::string notes;
  for (const std::string& note : resolved->notes) notes += note + "\n";
  EXPECT_NE(notes.find("without effect: compile.enable, job.description, training.dataset"), std::string::npos)
      << notes;
}

TEST_F(TorchtitanJob, WhatLiesInHostMemoryFollowsTheSharding) {
  const std::string offload = "[training]\nenable_cpu_offload = true\n";
  const auto sharded = resolve_job(offload);
  EXPECT_TRUE(sharded->derived.data_parallel.fsdp_cpu_offload);
  EXPECT_FALSE(sharded->config.optimizer.optimizer_cpu_offload);
  const auto whole = resolve_job(offload + "[parallelism]\ndata_parallel_shard_degree = 1\n");
  EXPECT_FALSE(whole->derived.data_parallel.fsdp_cpu_offload);
  EXPECT_TRUE(whole->config.optimizer.optimizer_cpu_offload);
}

TEST_F(TorchtitanJob, AFolderOfATokenizerThatIsNotThereLeavesTheModelsVocabulary) {
  const std::string job = "[model]\nname = \"qwen3\"\nflavor = \"0.6B\"\nhf_assets_path = \"./assets/hf/Qwen3-0.6B\"\n";
  const auto resolved = resolve_job(job);
  EXPECT_EQ(resolved->derived.vocab_size, 151936);
  const std::string said = "job.toml:4: model.hf_assets_path = ./assets/hf/Qwen3-0.6B is not there";
  EXPECT_TRUE(std::ranges::any_of(resolved->notes,
                                  [&](const std::string& note) { return note.find(said) != std::string::npos; }));
}

// Read from /configs/torchtitan: MODULE.toml has the table NAME.
std::unique_ptr<Resolved> resolve_name(const std::string& module, const std::string& name, int64_t num_ranks) {
  const std::string file = test::source_dir() / "configs/torchtitan" / (module + ".toml");
  ConfigInputs inputs = job_inputs({"--config", file, "--mock_data", "--dry_run"});
  inputs.readers[".toml"] = [name](const auto& path, const auto& root, const auto& environment) {
    return read_torchtitan_name(path, name, root, environment);
  };
  return resolve_config(all_kinds(), inputs, num_ranks);
}

TEST_F(TorchtitanJob, ConfigurationsOfItsMainHaveTheSameNumbers) {
  struct Row {
    std::string module, name;
    std::map<std::string, std::string> expected;
  };
  // As torchtitan's functions of these names say.
  const Row rows[] = {
      {"llama3",
       "llama3_405b",
       {{"num_layers", "126"},
        {"lr", "8e-05"},
        {"micro_batch_size", "2"},
        {"seq_length", "8192"},
        {"train_iters", "3000"},
        {"lr_warmup_iters", "600"},
        {"tensor_model_parallel_size", "8"},
        {"fp8_format", "hybrid"},
        {"recompute_granularity", "full"}}},
      {"llama3",
       "llama3_debugmodel_ce_loss",
       {{"num_layers", "6"}, {"micro_batch_size", "8"}, {"lr_wsd_decay_iters", "8"}}},
      {"qwen3", "qwen3_30b_a3b", {{"num_experts", "128"}, {"moe_aux_loss_coeff", "0"}, {"micro_batch_size", "2"}}},
      {"qwen3",
       "qwen3_moe_deepep",
       {{"num_experts", "64"}, {"hidden_size", "256"}, {"seq_length", "512"}, {"expert_model_parallel_size", "4"}}},
      {"deepseek_v3",
       "deepseek_v3_16b",
       {{"num_layers", "27"},
        {"lr", "0.00022"},
        {"expert_model_parallel_size", "8"},
        {"lr_wsd_decay_style", "cosine"}}},
      {"deepseek_v3", "deepseek_v3_debugmodel_hybridep", {{"num_layers", "6"}, {"moe_ffn_hidden_size", "256"}}},
      {"flux",
       "flux_schnell",
       {{"num_joint_layers", "19"},
        {"micro_batch_size", "64"},
        {"text_length", "256"},
        {"cfg_dropout_prob", "[0.447]"},
        {"lr_decay_style", "constant"},
        {"train_iters", "30000"},
        {"guidance_embed", "false"}}},
      {"flux", "flux_dev", {{"text_length", "512"}, {"micro_batch_size", "32"}, {"guidance_embed", "false"}}},
      {"flux", "flux_debugmodel", {{"num_single_layers", "2"}, {"hidden_size", "1536"}, {"clip_grad", "2"}}},
      {"gpt_oss", "gpt_oss_debugmodel_flex", {{"num_layers", "4"}, {"vocab_size", "2048"}, {"num_experts", "8"}}},
  };
  for (const Row& row : rows) {
    const auto resolved = resolve_name(row.module, row.name, 8);
    for (const auto& [name, value] : row.expected)
      EXPECT_EQ(text_of(*resolved, name), value) << row.name << ' ' << name;
  }
  // Every other name resolves too, or says why not.
  std::map<bool, int> counts;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() / "configs/torchtitan")) {
    const std::string module = entry.path().stem().string();
    std::istringstream lines(read_file(entry.path()));
    std::map<std::string, bool> is_refused;
    std::string name;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('[')) name = line.substr(1, line.size() - 2);
      if (!name.empty()) is_refused[name] |= line.starts_with("refused");
    }
    for (const auto& [one, refused] : is_refused) {
      ++counts[refused];
      if (refused) {
        EXPECT_ANY_THROW(resolve_name(module, one, 8)) << one;
      } else {
        EXPECT_NO_THROW(resolve_name(module, one, 8)) << one;
      }
    }
  }
  EXPECT_EQ(counts, (std::map<bool, int>{{false, 33}, {true, 15}}));
}

TEST_F(TorchtitanJob, BadFilesAreRefusedWithTheirLine) {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {"[training]\nstep = 5\n", {"job.toml:2", "'training.step'", "Did you mean 'training.steps'"}},
      {"[trainning]\nsteps = 5\n", {"job.toml:2", "trainning.steps"}},
      {"[training\nsteps = 5\n", {"job.toml:1"}},
      {"[training]\nsteps = 5\nsteps = 6\n", {"job.toml:3"}},
      {"[training]\nsteps = \"many\"\n", {"job.toml:2", "training.steps", "many", "whole number"}},
      {"[model]\nname = \"mamba\"\n", {"job.toml:2", "mamba", "llama3"}},
      {"[model]\nflavor = \"9B\"\n", {"job.toml:2", "9B", "8B, 70B, 405B"}},
      {"[optimizer]\nname = \"Adam\"\n", {"job.toml:2", "AdamW"}},
      {"[parallelism]\npipeline_parallel_degree = 2\n", {"job.toml:2", "global_batch_size"}},
      {"[activation_checkpoint]\nmode = \"memory_budget\"\n", {"job.toml:2", "memory_budget", "selective, full"}},
      {"[model]\nconverters = [\"mx\"]\n", {"job.toml:2", "float8"}},
      {"[checkpoint]\nenable = true\ninitial_load_path = \"x\"\n", {"job.toml:3", "initial_load_in_hf"}},
      {"[validation]\nenable = true\n", {"validation.steps"}},
      {"[training]\nlocal_batch_size = 0\n", {"job.toml:2", "micro_batch_size"}},
  };
  for (const auto& [text, parts] : rows) {
    const std::string said = refusal_of(text);
    for (const std::string& part : parts) EXPECT_NE(said.find(part), std::string::npos) << text << said;
  }
}

}  // namespace
}  // namespace megalith

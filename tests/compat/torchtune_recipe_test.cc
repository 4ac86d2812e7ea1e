// torchtune's recipe files: those of every listed model resolve with the key lists that theirs have, words change them
// as `tune run` does, and what has no counterpart is refused with its line.
#include "compat/torchtune_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "compat/file_dialects.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/config.h"

namespace megalith {
namespace {

enum class RecipeKind { kFull, kLora, kQlora };

struct RecipeModel {
  const char *builder, *preset;
  int rank, alpha;  // of the adapters in torchtune's recipe
};

// Every model whose recipes are read, and its adapters' figures there.
constexpr RecipeModel kModels[] = {
    {"llama2.llama2_7b", "llama2_7B", 8, 16},
    {"llama2.llama2_13b", "llama2_13B", 8, 16},
    {"llama2.llama2_70b", "llama2_70B", 16, 32},
    {"llama3.llama3_8b", "llama3_8B", 8, 16},
    {"llama3.llama3_70b", "llama3_70B", 16, 32},
    {"llama3_1.llama3_1_8b", "llama3.1_8B", 8, 16},
    {"llama3_1.llama3_1_70b", "llama3.1_70B", 16, 32},
    {"llama3_2.llama3_2_1b", "llama3.2_1B", 64, 128},
    {"llama3_2.llama3_2_3b", "llama3.2_3B", 64, 128},
    {"llama3_3.llama3_3_70b", "llama3.3_70B", 16, 32},
    {"qwen2_5.qwen2_5_0_5b", "qwen2.5_0.5B", 32, 64},
    {"qwen2_5.qwen2_5_1_5b_instruct", "qwen2.5_1.5B", 32, 64},
    {"qwen2_5.qwen2_5_3b", "qwen2.5_3B", 8, 16},
    {"qwen2_5.qwen2_5_7b_instruct", "qwen2.5_7B", 8, 16},
    {"qwen2_5.qwen2_5_14b_instruct", "qwen2.5_14B", 8, 16},
    {"qwen2_5.qwen2_5_32b_base", "qwen2.5_32B", 8, 16},
    {"qwen2_5.qwen2_5_72b_instruct", "qwen2.5_72B", 8, 16},
};

// The keys of a recipe of that kind, single-device or distributed, with values that such recipes have.
std::string recipe_text(const RecipeModel& model, RecipeKind kind, bool is_distributed) {
  const std::string builder(model.builder);
  const size_t dot = builder.find('.') + 1;
  const char* prefix = kind == RecipeKind::kFull ? "" : kind == RecipeKind::kLora ? "lora_" : "qlora_";
  std::string text = fmt::format(
      "output_dir: /nowhere/out\n"
      "model:\n  _component_: torchtune.models.{}{}{}\n",
      builder.substr(0, dot), prefix, builder.substr(dot));
  if (kind != RecipeKind::kFull) {
    text += fmt::format(
        "  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n  apply_lora_to_mlp: True\n"
        "  apply_lora_to_output: False\n  lora_rank: {}\n  lora_alpha: {}\n  lora_dropout: 0.0\n",
        model.rank, model.alpha);
  }
  text +=
      "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n"
      "  path: /nowhere/model/original/tokenizer.model\n  max_seq_len: null\n"
      "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n  checkpoint_dir: /nowhere/model/\n"
      "  checkpoint_files:\n    filename_format: model-{}-of-{}.safetensors\n    max_filename: \"00030\"\n"
      "  recipe_checkpoint: null\n  output_dir: ${output_dir}\n  model_type: LLAMA3\n"
      "resume_from_checkpoint: False\n"
      "dataset:\n  _component_: torchtune.datasets.alpaca_cleaned_dataset\n  packed: False\n  split: train[:95%]\n"
      "dataset_val:\n  _component_: torchtune.datasets.alpaca_cleaned_dataset\n  split: train[95%:]\n"
      "run_val_every_n_steps: null\nbatch_size_val: ${batch_size}\nseed: null\nshuffle: True\n"
      "optimizer:\n  _component_: torch.optim.AdamW\n  fused: True\n";
  text += kind == RecipeKind::kFull ? "  lr: 2e-5\n" : "  lr: 3e-4\n  weight_decay: 0.01\n";
  if (kind != RecipeKind::kFull) {
    text +=
        "lr_scheduler:\n  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup\n"
        "  num_warmup_steps: 100\nsave_adapter_weights_only: False\n";
  } else {
    text += "optimizer_in_bwd: False\n";
  }
  text +=
      "loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
      "epochs: 1\nmax_steps_per_epoch: null\nbatch_size: 2\ngradient_accumulation_steps: 8\nclip_grad_norm: null\n"
      "compile: False\n"
      "metric_logger:\n  _component_: torchtune.training.metric_logging.DiskLogger\n  log_dir: ${output_dir}/logs\n"
      "log_every_n_steps: 1\nlog_peak_memory_stats: True\nlog_level: INFO\ndevice: cuda\ndtype: bf16\n"
      "enable_activation_checkpointing: True\nenable_activation_offloading: False\n"
      "profiler:\n  _component_: torchtune.training.setup_torch_profiler\n  enabled: False\n"
      "  output_dir: ${output_dir}/profiling_outputs\n  cpu: True\n  cuda: True\n  profile_memory: False\n"
      "  with_stack: False\n  record_shapes: True\n  with_flops: False\n  wait_steps: 5\n  warmup_steps: 3\n"
      "  active_steps: 2\n  num_cycles: 1\n";
  if (!is_distributed) return text + "low_cpu_ram: False\n";
  if (kind != RecipeKind::kFull) return text + "fsdp:\n  cpu_offload: False\n";
  return text +
         "custom_sharded_layers: ['tok_embeddings', 'output']\nfsdp_cpu_offload: False\n"
         "tensor_parallel_dim: 1\ntensor_parallel_plan:\n  _component_: torchtune.models.llama3.base_llama_tp_plan\n"
         "data_parallel_shard_dim: -1\ndata_parallel_replicate_dim: 1\n";
}

struct TorchtuneRecipe : testing::Test {
  test::TemporaryFolder folder;

  void write(const std::string& text) { folder.write("recipe.yaml", text); }
  void write(const RecipeModel& model, RecipeKind kind, bool is_distributed = true) {
    write(recipe_text(model, kind, is_distributed));
  }
  ConfigInputs inputs_with(const std::vector<std::string>& words) {
    ConfigInputs inputs;
    inputs.arguments = {"--config", (folder.path() / "recipe.yaml").string()};
    inputs.arguments.insert(inputs.arguments.end(), words.begin(), words.end());
    inputs.config_root = test::source_dir() / "configs";
    adopt_file_dialect(inputs);
    return inputs;
  }
  std::unique_ptr<Resolved> read(const std::vector<std::string>& words = {}) {
    auto resolved = std::make_unique<Resolved>(all_kinds());
    resolution = try_resolve(*resolved->options, inputs_with(words));
    errors.clear();
    for (const UserError& error : resolution.errors) errors += fmt::format("{}\n", error.what());
    return resolved;
  }
  static std::string text_of(const Resolved& resolved, const char* name) {
    return resolved.options->find(name)->text();
  }
  std::string notes() const { return fmt::format("{}\n", fmt::join(resolution.notes, "\n")); }

  Resolution resolution;
  std::string errors;
};

TEST_F(TorchtuneRecipe, EveryListedModelResolves) {
  for (const RecipeModel& model : kModels) {
    for (const bool is_distributed : {false, true}) {
      for (const RecipeKind kind : {RecipeKind::kFull, RecipeKind::kLora}) {
        write(model, kind, is_distributed);
        const auto resolved = read();
        ASSERT_EQ(errors, "") << model.builder;
        EXPECT_EQ(text_of(*resolved, "micro_batch_size"), "2");
        EXPECT_EQ(text_of(*resolved, "gradient_accumulation_steps"), "8");
        EXPECT_EQ(text_of(*resolved, "train_epochs"), "1");
        EXPECT_EQ(text_of(*resolved, "load_hf"), "/nowhere/model/");
        EXPECT_EQ(text_of(*resolved, "tokenizer_model"), "null");  // the folder's own
        EXPECT_EQ(text_of(*resolved, "sft_data_path"), "[yahma/alpaca-cleaned/alpaca_data_cleaned.json]");
        EXPECT_EQ(resolved->config.data.split, "95,5,0");
        EXPECT_EQ(text_of(*resolved, "train_on_input"), "true");
        EXPECT_EQ(text_of(*resolved, "clip_grad"), "0");
        EXPECT_EQ(text_of(*resolved, "recompute_granularity"), "full");
        EXPECT_EQ(text_of(*resolved, "log_style"), "torchtune");
        const bool is_full = kind == RecipeKind::kFull;
        EXPECT_EQ(resolved->config.learning_rate.lr, is_full ? 2e-5 : 3e-4);
        EXPECT_EQ(text_of(*resolved, "lr_decay_style"), is_full ? "constant" : "cosine");
        EXPECT_EQ(text_of(*resolved, is_full ? "save_hf" : "save_adapter"), "/nowhere/out/epoch_0");
        EXPECT_EQ(resolved->config.lora.enabled, !is_full);
        // The model is that of the preset.
        Resolved preset(all_kinds());
        ConfigInputs inputs;
        inputs.arguments = {"--config", model.preset};
        inputs.config_root = test::source_dir() / "configs";
        try_resolve(*preset.options, inputs);
        EXPECT_EQ(resolved->config.model.num_layers, preset.config.model.num_layers);
        EXPECT_EQ(resolved->config.model.hidden_size, preset.config.model.hidden_size);
        if (is_full) continue;
        EXPECT_EQ(resolved->config.lora.dim, model.rank);
        EXPECT_EQ(resolved->config.lora.alpha, model.alpha);
        EXPECT_EQ(resolved->config.lora.target_modules,
                  (std::vector<std::string>{"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
      }
    }
  }
}

TEST_F(TorchtuneRecipe, AQuantisedBaseIsTheOptionOfAdapters) {
  for (const RecipeModel& model : kModels) {
    for (const bool is_distributed : {false, true}) {
      write(model, RecipeKind::kQlora, is_distributed);
      const auto resolved = read({});
      ASSERT_EQ(errors, "") << model.builder;
      EXPECT_EQ(text_of(*resolved, "lora.quantization"), "nf4");
      EXPECT_EQ(resolved->config.lora.dim, model.rank);
      EXPECT_FALSE(resolved->derived.data_parallel.use_torch_fsdp2);  // of one rank
    }
  }
}

TEST_F(TorchtuneRecipe, WordsChangeTheRecipe) {
  write(kModels[6], RecipeKind::kLora);
  auto resolved =
      read({"batch_size=4", "dataset.packed=True", "tokenizer.max_seq_len=8192", "max_steps_per_epoch=20", "epochs=2",
            "optimizer.lr=1e-4", "seed=42", "output_dir=here", "clip_grad_norm=1.0",
            "model.lora_attn_modules=['q_proj', 'k_proj']", "model.apply_lora_to_output=True", "~dataset_val"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "micro_batch_size"), "4");
  EXPECT_EQ(text_of(*resolved, "enable_packed_sequences"), "true");
  EXPECT_EQ(text_of(*resolved, "seq_length"), "8192");
  EXPECT_EQ(text_of(*resolved, "truncate"), "true");
  EXPECT_EQ(text_of(*resolved, "train_iters"), "40");
  EXPECT_EQ(text_of(*resolved, "train_epochs"), "null");
  EXPECT_EQ(text_of(*resolved, "lr_decay_iters"), "101");  // the run ends while it warms up
  EXPECT_EQ(resolved->config.learning_rate.lr, 1e-4);
  EXPECT_EQ(text_of(*resolved, "seed"), "42");
  EXPECT_EQ(text_of(*resolved, "save_adapter"), "here/epoch_1");
  EXPECT_TRUE(text_of(*resolved, "log_file").starts_with("here/logs/log_"));
  EXPECT_EQ(text_of(*resolved, "clip_grad"), "1");
  EXPECT_EQ(resolved->config.lora.target_modules,
            (std::vector<std::string>{"q_proj", "k_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}));

  resolved = read({"~lr_scheduler", "optimizer=torch.optim.SGD", "--lr", "0.5", "~epochs", "--train_iters", "3"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "lr_decay_style"), "constant");
  EXPECT_EQ(text_of(*resolved, "optimizer"), "sgd");
  EXPECT_EQ(resolved->config.learning_rate.lr, 0.5);
  EXPECT_EQ(text_of(*resolved, "train_iters"), "3");
}

TEST_F(TorchtuneRecipe, WhatElseRecipesAskForActs) {
  write(kModels[5], RecipeKind::kFull);
  auto resolved = read({"tensor_parallel_dim=2", "fsdp_reshard_after_forward=False", "save_every_n_steps=10",
                        "checkpointer.keep_last_n_checkpoints=3", "enable_activation_offloading=True",
                        "profiler.enabled=True", "run_val_every_n_steps=5", "device=cpu", "dtype=fp32",
                        "optimizer._component_=bitsandbytes.optim.PagedAdamW8bit", "shuffle=False"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "sft_shuffle"), "false");
  EXPECT_EQ(text_of(*resolved, "tensor_model_parallel_size"), "2");
  EXPECT_EQ(text_of(*resolved, "torch_fsdp2_reshard_after_forward"), "false");
  EXPECT_EQ(text_of(*resolved, "save"), "/nowhere/out/recipe_state");
  EXPECT_EQ(text_of(*resolved, "save_interval"), "10");
  EXPECT_EQ(text_of(*resolved, "keep_last"), "3");
  EXPECT_EQ(text_of(*resolved, "cpu_offloading_num_layers"), "32");
  EXPECT_EQ(text_of(*resolved, "profile_step_start"), "8");
  EXPECT_EQ(text_of(*resolved, "profile_step_end"), "10");
  EXPECT_EQ(text_of(*resolved, "eval_interval"), "5");
  EXPECT_EQ(text_of(*resolved, "device"), "cpu");
  EXPECT_EQ(text_of(*resolved, "fp32"), "true");
  EXPECT_EQ(text_of(*resolved, "optimizer"), "adam8bit");
  EXPECT_NE(notes().find("the weights have fp32 masters"), std::string::npos);
  resolved = read({"optimizer._component_=torchao.optim.AdamWFp8"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "exp_avg_dtype"), "bf16");
  EXPECT_NE(notes().find("moments are kept in bf16"), std::string::npos);

  resolved = read({"dataset=torchtune.datasets.text_completion_dataset", "dataset.source=json",
                   "dataset.data_files=wiki.json", "dataset.column=input", "dataset.split=train", "compile=True"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "sft_data_path"), "[wiki.json]");
  EXPECT_EQ(text_of(*resolved, "sft_column"), "input");
  EXPECT_EQ(resolved->config.data.split, "100,0,0");
  EXPECT_EQ(text_of(*resolved, "train_on_input"), "false");
  EXPECT_NE(notes().find("without effect: batch_size_val, compile"), std::string::npos) << notes();

  resolved = read({"dataset=torchtune.datasets.chat_dataset", "dataset.source=org/chats", "dataset.split=train_sft",
                   "dataset.conversation_style=openai", "dataset.conversation_column=messages"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "sft_conversation_format"), "chat_template");
  EXPECT_EQ(text_of(*resolved, "sft_dataset_split"), "train_sft");
}

TEST_F(TorchtuneRecipe, AListOfDataSetsIsOneSet) {
  const auto write_sets = [&](const std::string& sets) {
    std::string text = recipe_text(kModels[6], RecipeKind::kFull, false);
    const size_t begin = text.find("dataset:\n"), end = text.find("run_val_every_n_steps");
    write(text.replace(begin, end - begin, "dataset:\n" + sets));
  };
  const std::string cleaned = "  - _component_: torchtune.datasets.alpaca_cleaned_dataset\n";
  const std::string own = "  - _component_: torchtune.datasets.alpaca_dataset\n    source: json\n    data_files: ";
  write_sets(cleaned + own + "[a.json, b.json]\n" + own + "${output_dir}.json\n");
  const auto resolved = read({"dataset.packed=True", "tokenizer.max_seq_len=4096", "output_dir=c"});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "sft_data_path"),
            "[yahma/alpaca-cleaned/alpaca_data_cleaned.json, a.json, b.json, c.json]");
  EXPECT_EQ(resolved->config.data.split, "100,0,0");
  EXPECT_EQ(text_of(*resolved, "enable_packed_sequences"), "true");

  const std::pair<std::string, std::string> wrong[] = {
      {"    split: test\n", "dataset.split test, but this program takes: data sets of a list that are read alike"},
      {"    train_on_input: False\n", "dataset.train_on_input False"},
      {"    sources: x\n", "no key 'dataset.sources'. Did you mean 'dataset.source'"},
      {"    packed: True\n", "dataset.packed True"},
  };
  for (const auto& [line, part] : wrong) {
    write_sets(cleaned + own + "a.json\n" + line);
    read();
    EXPECT_NE(errors.find(part), std::string::npos) << errors;
  }
  write_sets(cleaned + "  - _component_: torchtune.datasets.wikitext_dataset\n");
  read();
  EXPECT_NE(errors.find("wikitext_dataset, but this program takes: data sets of a list"), std::string::npos) << errors;
  write_sets(cleaned + "    split: train[:95%]\n" + own + "a.json\n    split: train[:95%]\n");
  read();
  EXPECT_NE(errors.find("whole splits of several data sets"), std::string::npos) << errors;
}

TEST_F(TorchtuneRecipe, TheFolderSaysWhatLiesInIt) {
  write(kModels[6], RecipeKind::kFull);
  folder.write("model/config.json", "{}");
  const auto resolved = read({fmt::format("checkpointer.checkpoint_dir={}", (folder.path() / "model").string())});
  ASSERT_EQ(errors, "");
  EXPECT_EQ(text_of(*resolved, "num_layers"), "0");
}

TEST_F(TorchtuneRecipe, OtherFilesAreNoRecipes) {
  folder.write("plain.yaml", "lr: 1\n# _component_: no\n");
  EXPECT_FALSE(is_torchtune_recipe(folder.path() / "plain.yaml"));
  EXPECT_FALSE(is_torchtune_recipe(folder.path() / "none.yaml"));
  write(kModels[0], RecipeKind::kFull);
  EXPECT_TRUE(is_torchtune_recipe(folder.path() / "recipe.yaml"));
  ConfigInputs inputs;
  inputs.arguments = {"--config", (folder.path() / "plain.yaml").string(), "batch_size=2"};
  adopt_file_dialect(inputs);
  EXPECT_EQ(inputs.arguments.size(), 3U);
}

TEST_F(TorchtuneRecipe, WhatIsWrongIsNamedWithItsPlace) {
  write(kModels[6], RecipeKind::kLora);
  const std::pair<std::vector<std::string>, std::vector<std::string>> rows[] = {
      {{"~optimiser"}, {"~optimiser", "has no key 'optimiser' to remove", "~optimizer"}},
      {{"optimizer.learning_rate=1"}, {"command line", "no key 'optimizer.learning_rate'"}},
      {{"model.lora_ranks=1"}, {"no key 'model.lora_ranks'", "Did you mean 'model.lora_rank'"}},
      {{"model._component_=torchtune.models.gemma.gemma_2b"}, {"gemma_2b", "llama3_1_70b", "qwen2_5_0_5b"}},
      {{"loss._component_=torchtune.rlhf.loss.DPOLoss"}, {"DPOLoss", "LinearCrossEntropyLoss"}},
      {{"optimizer=torch.optim.Adagrad"}, {"torch.optim.Adagrad", "AdamW"}},
      {{"lr_scheduler=torch.optim.lr_scheduler.StepLR"}, {"StepLR", "get_cosine_schedule_with_warmup"}},
      {{"dataset=torchtune.datasets.samsum_dataset"}, {"samsum_dataset", "alpaca_dataset", "JSON lines"}},
      {{"checkpointer=torchtune.training.FullModelMetaCheckpointer"}, {"FullModelMetaCheckpointer", "HFCheckpointer"}},
      {{"metric_logger=torchtune.training.metric_logging.CometLogger"}, {"CometLogger", "DiskLogger"}},
      {{"quantizer._component_=torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"},
       {"quantizer._component_", "quantisation-aware training"}},
      {{"model.apply_lora_to_output=perhaps"}, {"model.apply_lora_to_output perhaps", "True or False"}},
      {{"model.lora_attn_modules=[wqkv]"}, {"lora_attn_modules [wqkv]", "q_proj, k_proj, v_proj, output_proj"}},
      {{"dataset.packed=True"}, {"dataset.packed True", "needs tokenizer.max_seq_len"}},
      {{"dataset.split=train[5%:]"}, {"dataset.split train[5%:]", "begins with the first row"}},
      {{"dataset.source=json"}, {"dataset.source json", "data_files"}},
      {{"enable_activation_checkpointing=maybe"}, {"enable_activation_checkpointing maybe", "True or False"}},
      {{"dtype=fp16"}, {"dtype fp16", "bf16, fp32"}},
      {{"enable_fp8_training=True", "fp8_recipe_name=rowwise"}, {"fp8_recipe_name rowwise", "tensorwise"}},
      {{"output_dir=${nothing}"}, {"${nothing}", "there is no such key"}},
      {{"batch_size=0"}, {"command line", "micro_batch_size"}},
  };
  for (const auto& [words, parts] : rows) {
    read(words);
    for (const std::string& part : parts) {
      EXPECT_NE(errors.find(part), std::string::npos) << part << "\nnot in\n" << errors << "of " << words[0];
    }
  }
  std::string text = recipe_text(kModels[6], RecipeKind::kLora, true);
  write(text + "warmup: 3\n");
  read();
  EXPECT_NE(errors.find(fmt::format("recipe.yaml:{}: recipes of torchtune for fine-tuning have no key 'warmup'",
                                    std::count(text.begin(), text.end(), '\n') + 1)),
            std::string::npos)
      << errors;
  write("model:\n  _component_: torchtune.models.llama3.llama3_8b\n  lora_rank: 8\n");
  read();
  EXPECT_NE(errors.find("recipe.yaml:3: model.lora_rank 8, and torchtune.models.llama3.llama3_8b has no adapters"),
            std::string::npos)
      << errors;
}

}  // namespace
}  // namespace megalith

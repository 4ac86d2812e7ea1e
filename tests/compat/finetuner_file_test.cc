// Files of axolotl, LLaMA-Factory and TRL: SFT, LoRA, QLoRA, DPO and pre-training resolve, words change them, and what
// has no counterpart is refused with its line.
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

using Words = std::vector<std::string>;

// Keys as in axolotl's own examples for adapters.
constexpr const char* kAxolotl = R"(base_model: org/base
datasets:
  - path: org/instructions
    type: alpaca
    split: train[:20%]
val_set_size: 0.1
output_dir: ./outputs/lora
adapter: lora
lora_model_dir:
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 3
num_epochs: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
logging_steps: 1
attn_implementation: flash_attention_2
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.01
special_tokens:
  pad_token: "<|end|>"
)";

// And as in LLaMA-Factory's.
constexpr const char* kLlamaFactory = R"(model_name_or_path: org/chat
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity, questions
template: qwen3_nothink
cutoff_len: 1024
max_samples: 500
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: saves/lora
logging_steps: 10
save_steps: 200
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
)";

constexpr const char* kRegister = R"({
  "identity": {"file_name": "identity.json"},
  "questions": {"hf_hub_url": "org/questions", "subset": "en"},
  "chats": {"hf_hub_url": "org/chats", "formatting": "sharegpt", "split": "train_sft",
            "columns": {"messages": "messages"}, "tags": {"role_tag": "role", "content_tag": "content"}},
  "pairs": {"hf_hub_url": "org/pairs", "formatting": "sharegpt", "ranking": true,
            "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}},
  "texts": {"file_name": "c4.jsonl", "columns": {"prompt": "body"}},
  "pictures": {"file_name": "p.json", "columns": {"images": "images"}},
  "labels": {"file_name": "k.json", "columns": {"kto_tag": "label"}},
  "renamed": {"file_name": "r.json", "columns": {"prompt": "q", "response": "a"}}
})";

struct FinetunerFile : testing::Test {
  void SetUp() override {
    folder.write("axolotl.yml", kAxolotl);
    folder.write("factory.yaml", kLlamaFactory);
    folder.write("data/dataset_info.json", kRegister);
  }

  std::string in(const std::string& name) const { return (folder.path() / name).string(); }

  std::unique_ptr<Resolved> read(Words arguments) {
    auto resolved = std::make_unique<Resolved>(all_kinds());
    ConfigInputs inputs;
    inputs.arguments = std::move(arguments);
    inputs.config_root = test::source_dir() / "configs";
    adopt_file_dialect(inputs);
    resolution = try_resolve(*resolved->options, inputs);
    errors.clear();
    for (const UserError& error : resolution.errors) errors += fmt::format("{}\n", error.what());
    notes = fmt::format("{}\n", fmt::join(resolution.notes, "\n"));
    return resolved;
  }
  std::unique_ptr<Resolved> read_axolotl(const Words& words = {}) {
    Words all = {"--config", in("axolotl.yml")};
    all.insert(all.end(), words.begin(), words.end());
    return read(all);
  }
  std::unique_ptr<Resolved> read_factory(const Words& words = {}) {
    Words all = {"--config", in("factory.yaml"), "dataset_dir=" + in("data")};
    all.insert(all.end(), words.begin(), words.end());
    return read(all);
  }
  // The file with other lines at its end, or in place of those of the same keys.
  std::unique_ptr<Resolved> read_changed(const char* name, std::string text, const std::string& lines) {
    for (size_t begin = 0; begin < lines.size(); begin = lines.find('\n', begin) + 1) {
      const std::string key = lines.substr(begin, lines.find(':', begin) + 1 - begin);
      const size_t at = ("\n" + text).find("\n" + key);
      if (at == std::string::npos || key[0] == ' ') continue;
      size_t end = text.find('\n', at) + 1;
      while (text[end] == ' ') end = text.find('\n', end) + 1;
      text.erase(at, end - at);
    }
    folder.write(name, text + lines);
    return std::string(name).ends_with(".yml") ? read_axolotl() : read_factory();
  }
  static std::string text_of(const Resolved& resolved, const char* name) {
    std::string text = resolved.options->find(name)->text();
    std::erase(text, '"');
    return text;
  }
  void expect(const Resolved& resolved, const std::vector<std::pair<const char*, std::string>>& values) const {
    ASSERT_EQ(errors, "");
    for (const auto& [name, value] : values) EXPECT_EQ(text_of(resolved, name), value) << name;
  }

  test::TemporaryFolder folder;
  Resolution resolution;
  std::string errors, notes;
};

TEST_F(FinetunerFile, AxolotlsAdaptersResolve) {
  const auto resolved = read_axolotl();
  expect(*resolved, {{"load_hf", "org/base"},
                     {"sft_data_path", "[org/instructions[:20%]]"},
                     {"sft_conversation_format", "alpaca"},
                     {"split", "0.9,0.1,0"},
                     {"save_adapter", "./outputs/lora"},
                     {"seq_length", "2048"},
                     {"truncate", "true"},
                     {"enable_packed_sequences", "true"},
                     {"sft_packing", "first_fit_decreasing"},
                     {"lora.enabled", "true"},
                     {"lora.dim", "16"},
                     {"lora.alpha", "32"},
                     {"lora.dropout", "0.05"},
                     {"lora.target_modules", "[all-linear]"},
                     {"lora.quantization", "none"},
                     {"micro_batch_size", "3"},
                     {"gradient_accumulation_steps", "2"},
                     {"train_epochs", "4"},
                     {"optimizer", "adam8bit"},
                     {"lr", "0.0002"},
                     {"lr_decay_style", "cosine"},
                     {"lr_warmup_fraction", "0.1"},
                     {"weight_decay", "0.01"},
                     {"clip_grad", "1"},
                     {"seed", "42"},
                     {"bf16", "true"},
                     {"recompute_granularity", "full"},
                     {"log_interval", "1"},
                     {"save", "null"},
                     {"wandb_project", "null"}});
  for (const char* said : {"special_tokens.pad_token", "evals_per_epoch: 4", "2048 tokens are cut"}) {
    EXPECT_NE(notes.find(said), std::string::npos) << said << "\nnot in\n" << notes;
  }
}

TEST_F(FinetunerFile, AxolotlsOtherMethodsResolve) {
  auto resolved = read_axolotl({"load_in_4bit=true", "warmup_steps=10", "max_steps=50", "save_steps=20",
                                "lr_scheduler=constant_with_warmup", "deepspeed=zero3_bf16_cpuoffload_all.json"});
  expect(*resolved, {{"lora.quantization", "nf4"},
                     {"lr_warmup_iters", "10"},
                     {"lr_warmup_fraction", "null"},
                     {"train_iters", "50"},
                     {"lr_decay_style", "constant"},
                     {"use_torch_fsdp2", "true"},
                     {"fsdp_cpu_offload", "true"},
                     {"save", "./outputs/lora-checkpoints"},
                     {"save_interval", "20"}});
  resolved = read_axolotl({"lora_modules_to_save=[embed_tokens, lm_head]", "peft_init_lora_weights=pissa_niter_4",
                           "noisy_embedding_alpha=5"});
  expect(*resolved, {{"lora.modules_to_save", "[embed_tokens, lm_head]"},
                     {"lora.init_lora_weights", "pissa_niter_4"},
                     {"lora.lora_A_init_method", "xavier"},
                     {"neftune_noise_alpha", "5"}});
  // All weights, with FSDP: they and the moments are in bf16.
  resolved = read_changed("axolotl.yml", kAxolotl,
                          "adapter:\noptimizer: adamw_torch_fused\nfsdp:\n  - full_shard\n  - auto_wrap\n"
                          "fsdp_config:\n  fsdp_offload_params: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
                          "datasets:\n  - path: org/chats\n    type: chat_template\n    field_messages: conversations\n"
                          "    message_property_mappings: {role: from, content: value}\n  - path: other.jsonl\n"
                          "    type: chat_template\nchat_template: chatml\n");
  expect(*resolved, {{"lora.enabled", "false"},
                     {"save_hf", "./outputs/lora"},
                     {"use_torch_fsdp2", "true"},
                     {"fsdp_cpu_offload", "true"},
                     {"master_weights", "remainder"},
                     {"sft_data_path", "[org/chats, other.jsonl]"},
                     {"sft_conversation_format", "messages"}});
  resolved = read_changed("axolotl.yml", kAxolotl,
                          "rl: dpo\nrl_beta: 0.2\nchat_template: llama3\nval_set_size: 0\n"
                          "datasets:\n  - path: org/pairs\n    type: chat_template.default\n    field_messages: "
                          "conversation\n    field_chosen: chosen\n    field_rejected: rejected\n");
  expect(*resolved, {{"loss", "dpo"},
                     {"dpo_beta", "0.2"},
                     {"sft_conversation_format", "chat_template"},
                     {"split", "100,0,0"},
                     {"eval_iters", "0"}});
  EXPECT_NE(notes.find("the chat template that came with the model is used"), std::string::npos) << notes;
  // Rated answers, until the loss gets no better.
  resolved = read_changed("axolotl.yml", kAxolotl,
                          "rl: kto\nrl_beta: 0.2\nkto_desirable_weight: 0.5\nloraplus_lr_ratio: 16\n"
                          "chat_template: llama3\nearly_stopping_patience: 3\neval_steps: 10\nsave_steps: 20\nsave_total_limit: 2\n"
                          "evals_per_epoch:\nsaves_per_epoch:\ngroup_by_length: true\n"
                          "datasets:\n  - {path: org/rated, type: llama3.ultra}\n");
  expect(*resolved, {{"loss", "kto"},
                     {"dpo_beta", "0.2"},
                     {"kto_desirable_weight", "0.5"},
                     {"lora.loraplus_lr_ratio", "16"},
                     {"early_stopping_patience", "3"},
                     {"load_best_model_at_end", "true"},
                     {"keep_last", "2"}});
  EXPECT_NE(notes.find("group_by_length: true: samples are learned in an order"), std::string::npos) << notes;
  resolved = read_changed("axolotl.yml", kAxolotl,
                          "adapter:\nunfrozen_parameters: [^lm_head.weight$, \"model.layers.4[4-9]+.mlp\"]\n"
                          "curriculum_sampling: true\n");
  expect(*resolved, {{"sft_shuffle", "false"}});
  EXPECT_EQ(resolved->config.train.freeze, Words{R"((?!(?:^lm_head\.weight$|model\.layers\.4[4-9]+\.mlp)).*)"})
      << errors;
  // Keys of rows under other names, and a prompt of axolotl's own.
  resolved = read_changed("axolotl.yml", kAxolotl,
                          "dataset_exact_deduplication: true\ndatasets:\n  - path: org/chats\n    type: chat_template\n"
                          "    field_messages: talk\n    message_field_training: learn\n    drop_system_message: true\n"
                          "    message_property_mappings: {role: speaker, content: text}\n    roles: {user: [human]}\n");
  expect(*resolved, {{"sft_rename_keys",
                      "[talk=messages, message.learn=train, message.speaker=role, message.text=content]"},
                     {"sft_drop_system", "true"},
                     {"sft_deduplicate", "true"}});
  resolved = read_changed("axolotl.yml", kAxolotl, "datasets:\n  - {path: a, type: \"alpaca:chat\"}\n");
  expect(*resolved, {{"sft_conversation_format", "alpaca_chat"}, {"sft_rename_keys", "[]"}});
  std::string text = kAxolotl;
  text.erase(text.find("datasets:"), text.find("val_set_size") - text.find("datasets:"));
  resolved = read_changed("axolotl.yml", text,
                          "sample_packing:\nmax_steps: 1000\nadapter:\npretraining_dataset:\n  - path: org/web\n"
                          "    name: sample\n    type: pretrain\n    text_column: body\n    split: train\n");
  expect(*resolved, {{"sft_data_path", "[org/web/sample]"},
                     {"sft_column", "body"},
                     {"enable_packed_sequences", "true"},
                     {"train_iters", "1000"}});
}

TEST_F(FinetunerFile, AnEmptyKeyLeavesItsAliasTheValue) {
  for (const char* lines : {"wandb_name:\nwandb_run_name: first\n", "wandb_run_name: first\nwandb_name:\n"}) {
    const auto resolved = read_changed("axolotl.yml", kAxolotl, std::string("wandb_project: p\n") + lines);
    expect(*resolved, {{"wandb_exp_name", "first"}});
  }
}

TEST_F(FinetunerFile, LlamaFactorysMethodsResolve) {
  auto resolved = read_factory();
  expect(*resolved, {{"load_hf", "org/chat"},
                     {"sft_data_path", fmt::format("[{}[:500], org/questions/en[:500]]", in("data/identity.json"))},
                     {"sft_conversation_format", "chat_template"},
                     {"enable_thinking", "false"},
                     {"lora.dim", "8"},
                     {"lora.alpha", "16"},
                     {"lora.target_modules", "[all-linear]"},
                     {"seq_length", "1024"},
                     {"save_adapter", "saves/lora"},
                     {"save", "saves/lora-checkpoints"},
                     {"save_interval", "200"},
                     {"overwrite", "true"},
                     {"micro_batch_size", "1"},
                     {"gradient_accumulation_steps", "8"},
                     {"train_epochs", "3"},
                     {"recompute_granularity", "full"},
                     {"eval_iters", "0"},
                     {"lr", "0.0001"}});
  resolved = read_factory({"dataset=chats", "finetuning_type=full", "pure_bf16=true", "max_samples=null",
                           "disable_gradient_checkpointing=true", "packing=true", "val_size=0.05",
                           "eval_strategy=steps", "eval_steps=50", "deepspeed=ds_z2_config.json",
                           "report_to=tensorboard"});
  expect(*resolved, {{"sft_data_path", "[org/chats[train_sft]]"},
                     {"save_hf", "saves/lora"},
                     {"master_weights", "remainder"},
                     {"recompute_granularity", "null"},
                     {"use_packed_attention", "false"},
                     {"eval_interval", "50"},
                     {"use_distributed_optimizer", "true"},
                     {"tensorboard_dir", "saves/lora-runs"}});
  resolved = read_factory({"additional_target=embed_tokens,lm_head", "pissa_init=true", "neftune_noise_alpha=5"});
  expect(*resolved, {{"lora.modules_to_save", "[embed_tokens, lm_head]"},
                     {"lora.init_lora_weights", "pissa_niter_16"},
                     {"neftune_noise_alpha", "5"}});
  EXPECT_NE(notes.find("plain ones of twice the rank"), std::string::npos) << notes;
  resolved = read_factory({"pissa_init=true", "pissa_iter=-1", "pissa_convert=true"});
  expect(*resolved, {{"lora.init_lora_weights", "pissa"}});
  EXPECT_EQ(notes.find("plain ones of twice the rank"), std::string::npos) << notes;
  resolved = read_factory({"stage=dpo", "dataset=pairs", "pref_beta=0.3", "pref_loss=sigmoid", "quantization_bit=4"});
  expect(*resolved, {{"loss", "dpo"}, {"dpo_beta", "0.3"}, {"lora.quantization", "nf4"}});
  resolved = read_factory({"stage=kto", "dataset=labels", "kto_rejected_weight=2", "early_stopping_steps=4",
                           "val_size=0.1", "eval_strategy=steps", "load_best_model_at_end=true"});
  expect(*resolved, {{"loss", "kto"},
                     {"kto_desirable_weight", "1"},
                     {"kto_undesirable_weight", "2"},
                     {"early_stopping_patience", "4"},
                     {"load_best_model_at_end", "true"}});
  resolved = read_factory({"eval_dataset=identity,questions", "eval_on_each_dataset=true", "eval_strategy=steps",
                           "metric_for_best_model=eval_identity_loss", "load_best_model_at_end=true"});
  expect(*resolved, {{"validation_set_names", "[identity, questions]"}});
  const std::string identity = in("data/identity.json[:500]");
  resolved = read_factory({"mix_strategy=interleave_over", "interleave_probs=0.7,0.3"});
  expect(*resolved, {{"sft_data_path", fmt::format("[0.7, {}, 0.3, org/questions/en[:500]]", identity)},
                     {"sft_set_names", "[identity, questions]"},
                     {"sft_mix", "interleave_over"}});
  resolved = read_factory({"mix_strategy=interleave_under"});
  expect(*resolved, {{"sft_data_path", fmt::format("[{}, org/questions/en[:500]]", identity)},
                     {"sft_mix", "interleave_under"}});
  resolved = read_factory({"mix_strategy=interleave_once", "interleave_probs=0.7,0.3"});
  expect(*resolved, {{"sft_mix", "concat"}, {"sft_set_names", "[identity, questions]"}});
  EXPECT_NE(notes.find("interleave_probs: 0.7,0.3: all rows of all sets"), std::string::npos) << notes;
  read_factory({"mix_strategy=interleave_over", "interleave_probs=0.7"});
  EXPECT_NE(errors.find("takes: 2 numbers, one for each set in dataset"), std::string::npos) << errors;
  resolved = read_factory({"dataset=renamed"});
  expect(*resolved, {{"sft_rename_keys", "[q=instruction, a=output]"}});
  resolved = read_factory(
      {"finetuning_type=freeze", "freeze_trainable_layers=-2", "freeze_extra_modules=embed_tokens"});
  expect(*resolved, {{"save_hf", "saves/lora"}});
  EXPECT_EQ(resolved->config.train.freeze, Words{R"((?!(?:.*(?:\.(?:0|1)\.|embed_tokens))).*)"});
  folder.write("base/config.json", R"({"num_hidden_layers": 4})");
  resolved = read_factory(
      {"finetuning_type=freeze", "model_name_or_path=" + in("base"), "freeze_trainable_modules=mlp"});
  EXPECT_EQ(resolved->config.train.freeze, Words{R"((?!(?:.*(?:\.(?:2|3)\.(?:mlp)))).*)"}) << errors;
  resolved = read_factory({"stage=pt", "dataset=texts", "template=null"});
  expect(*resolved, {{"sft_column", "body"}, {"enable_packed_sequences", "true"}});
}

TEST_F(FinetunerFile, TrlsFlagsAndFilesResolve) {
  auto resolved = read({"--dialect=trl_sft",
                        "--model_name_or_path", "org/base",
                        "--dataset_name", "org/chats",
                        "--learning_rate", "2.0e-4",
                        "--num_train_epochs", "1",
                        "--packing",
                        "--per_device_train_batch_size", "2",
                        "--gradient-accumulation-steps", "8",
                        "--eos_token", "<|im_end|>",
                        "--eval_strategy", "steps",
                        "--eval_steps", "100",
                        "--use_peft", "--lora_r", "32", "--lora_alpha", "16",
                        "--lora_modules_to_save", "embed_tokens", "lm_head", "--neftune_noise_alpha", "5",
                        "--output_dir", "out",
                        "--push_to_hub", "--no_gradient_checkpointing", "--no_remove_unused_columns"});
  expect(*resolved, {{"load_hf", "org/base"},
                     {"sft_data_path", "[org/chats]"},
                     {"sft_valid_data_path", "[org/chats[test]]"},
                     {"lr", "0.0002"},
                     {"train_epochs", "1"},
                     {"enable_packed_sequences", "true"},
                     {"sft_packing", "first_fit_decreasing"},
                     {"micro_batch_size", "2"},
                     {"gradient_accumulation_steps", "8"},
                     {"eval_interval", "100"},
                     {"lora.dim", "32"},
                     {"lora.alpha", "16"},
                     {"lora.target_modules", "[q_proj, v_proj]"},
                     {"lora.modules_to_save", "[embed_tokens, lm_head]"},
                     {"neftune_noise_alpha", "5"},
                     {"lr_decay_style", "linear"},
                     {"bf16", "true"},
                     {"recompute_granularity", "null"},
                     {"save_adapter", "out"}});
  for (const char* said : {"nothing is uploaded", "PEFT's choice", "here only answers are learned"}) {
    EXPECT_NE(notes.find(said), std::string::npos) << said << "\nnot in\n" << notes;
  }
  folder.write("trl.yaml", "model_name_or_path:\n  org/base\ndataset_name:\n  org/texts\nreport_to:\n  none\n"
                           "learning_rate:\n  0.0001\nlr_scheduler_type:\n  cosine\nenv:\n  NCCL_DEBUG: WARN\n");
  resolved = read({"--config", in("trl.yaml"), "--seq_length", "512"});
  expect(*resolved, {{"lr", "0.0001"}, {"lr_decay_style", "cosine"}, {"seq_length", "512"}, {"loss", "next_token"}});
  EXPECT_EQ(resolution.exports.at("NCCL_DEBUG"), "WARN");
  resolved = read({"--dialect=trl_sft", "--config", in("trl.yaml"), "--dataset_text_field", "body", "--optim",
                   "lion_32bit", "--report_to", "swanlab", "wandb", "--run_name", "first"});
  expect(*resolved, {{"sft_column", "body"}, {"lion_beta2", "0.999"}, {"wandb_exp_name", "first"}});
  EXPECT_NE(notes.find("[swanlab, wandb]: nothing is written for it"), std::string::npos) << notes;
  resolved = read({"--dialect=trl_dpo", "--config", in("trl.yaml"), "--learning_rate", "null", "--beta", "0.05"});
  expect(*resolved, {{"loss", "dpo"}, {"dpo_beta", "0.05"}, {"lr", "1e-06"}, {"enable_packed_sequences", "false"}});
  resolved = read(
      {"--dialect=trl_kto", "--config", in("trl.yaml"), "--learning_rate", "null", "--desirable_weight", "3"});
  expect(*resolved, {{"loss", "kto"}, {"kto_desirable_weight", "3"}, {"lr", "1e-06"}});
}

TEST_F(FinetunerFile, OtherFilesAreNotTheirs) {
  folder.write("plain.yaml", "load_hf: x\nlr: 1\n");
  folder.write("words.yaml", "model_name_or_path: x\nlearning_rate: 1\n");  // words of options
  for (const char* name : {"plain.yaml", "words.yaml"}) {
    ConfigInputs inputs;
    inputs.arguments = {"--config", in(name), "lora_r=2"};
    adopt_file_dialect(inputs);
    EXPECT_TRUE(inputs.readers.empty() && inputs.arguments.size() == 3) << name;
  }
}

TEST_F(FinetunerFile, WhatIsWrongIsNamedWithItsPlace) {
  const std::pair<const char*, std::vector<std::string>> axolotl[] = {
      {"rl: orpo\n", {"axolotl.yml:", "rl: orpo", "takes: dpo, kto"}},
      {"reward_model: true\n", {"reward_model: true is not supported: reward models"}},
      {"adapter: llama-adapter\n", {"adapter: llama-adapter", "lora, qlora"}},
      {"adapter:\nload_in_4bit: true\n", {"load_in_4bit: true needs adapters"}},
      {"datasets:\n  - path: a\n    type: input_output\n", {"dataset.type: input_output", "alpaca:phi, chat_template"}},
      {"datasets:\n  - {path: a, type: chat_template, roles: {user: [asker]}}\n", {"roles.user: ", "rename the roles"}},
      {"datasets:\n  - {path: a, type: chat_template, field_messages: talk}\n  - {path: b, type: chat_template}\n",
       {"a and b have rows of two forms"}},
      {"datasets:\n  - {path: a, type: chat_template, field_of_mine: 1}\n", {"nothing here reads field_of_mine"}},
      {"datasets:\n  - {path: a, type: alpaca}\n  - {path: b, type: completion}\n", {"a and b have rows of two forms"}},
      {"datasets:\n  - path: json\n    type: alpaca\n", {"path: json", "data_files"}},
      {"datasets: rows.jsonl\n", {"datasets: rows.jsonl", "a list of data sets"}},
      {"dataset:\n  split: test\n", {"dataset.split: test", "where it is listed"}},
      {"test_datasets:\n  - {path: c, type: completion}\n", {"org/instructions and c have rows of two forms"}},
      {"callbacks:\n  - {a: 1}\n", {"callbacks is a list of several"}},
      {"datasets:\n  - path: a\n    type: alpaca\n    split: train+test\n", {"split: train+test", "one split"}},
      {"optimizer: came_pytorch\n", {"optimizer: came_pytorch", "adamw_torch"}},
      {"lr_scheduler: rex\n", {"lr_scheduler: rex", "linear, cosine"}},
      {"processor_type: AutoProcessor\n", {"processor_type: AutoProcessor is not supported: pictures"}},
      {"trl:\n  beta: 0.1\n", {"trl.beta: 0.1 is not supported: reinforcement"}},
      {"plugins:\n  - my.Plugin\n", {"plugins: ", "my.Plugin", "CutCrossEntropyPlugin"}},
      {"val_set_size: 200\n", {"val_set_size: 200", "a part of the rows below 1"}},
      {"unfrozen_parameters: [model.layers.1.*]\n", {"unfrozen_parameters: ", "nothing but adapters"}},
      {"adapter:\nunfrozen_parameters: [\"^lm_head.weight$[:32]\"]\n", {"without a range of their rows"}},
      {"mico_batch_size: 2\n", {"mico_batch_size", "micro_batch_size"}},
      {"bf16: perhaps\n", {"bf16: perhaps", "true or false"}},
      {"deepspeed: {stage: 3}\n", {"deepspeed.stage"}},
      {"deepspeed: mine.json\n", {"deepspeed: mine.json", "says the stage"}},
  };
  for (const auto& [lines, parts] : axolotl) {
    read_changed("axolotl.yml", kAxolotl, lines);
    for (const std::string& part : parts) {
      EXPECT_NE(errors.find(part), std::string::npos) << part << "\nnot in\n" << errors << "of " << lines;
    }
  }
  const std::pair<Words, std::vector<std::string>> factory[] = {
      {{"stage=kto"}, {"a kto_tag among its columns", "rated answers"}},
      {{"stage=rm"}, {"stage: rm", "sft, pt, dpo, kto"}},
      {{"finetuning_type=oft"}, {"finetuning_type: oft", "lora, full, freeze"}},
      {{"finetuning_type=freeze"}, {"freeze_trainable_layers: 2", "whose folder is here"}},
      {{"finetuning_type=freeze", "freeze_trainable_layers=0"}, {"freeze_trainable_layers: 0", "from 1 to 10000"}},
      {{"finetuning_type=freeze", "freeze_trainable_layers=-1000000000000"}, {"from 1 to 10000"}},
      {{"dataset=nothing"}, {"has no data set 'nothing'"}},
      {{"dataset=pictures"}, {"columns.images", "pictures"}},
      {{"dataset=labels"}, {"rated answers", "stage: kto"}},
      {{"dataset=pairs"}, {"pairs of answers", "stage: dpo"}},
      {{"stage=dpo"}, {"the set has no ranking"}},
      {{"dataset=chats,texts"}, {"chats and texts have rows of two forms"}},
      {{"dataset_dir=elsewhere"}, {"there is no elsewhere/dataset_info.json"}},
      {{"image_max_pixels=100"}, {"image_max_pixels: 100 is not supported: pictures"}},
      {{"template=default"}, {"template: default", "came with a model"}},
      {{"use_galore=true"}, {"use_galore"}},
      {{"report_to=aim"}, {"report_to: aim", "wandb"}},
      {{"lora_r=many"}, {"lora_r: many", "a whole number"}},
      {{"dataset.split=test"}, {"dataset.split: test", "where it is listed"}},
      {{"quantization_bit=3"}, {"quantization_bit: 3", "4, 8"}},
      {{"quantization_bit=4", "finetuning_type=full"}, {"quantization_bit: 4 needs adapters"}},
      {{"quantization_bit=4", "finetuning_type=lora", "quantization_type=fp4"}, {"quantization_type: fp4", "nf4"}},
  };
  for (const auto& [words, parts] : factory) {
    folder.write("factory.yaml", kLlamaFactory);
    read_factory(words);
    for (const std::string& part : parts) {
      EXPECT_NE(errors.find(part), std::string::npos) << part << "\nnot in\n" << errors << "of " << words[0];
    }
  }
  read({"--dialect=trl_dpo", "--dataset_name", "org/pairs", "--loss_type", "ipo"});
  for (const char* part : {"the model is not named", "loss_type: ipo", "sigmoid"}) {
    EXPECT_NE(errors.find(part), std::string::npos) << errors;
  }
}

}  // namespace
}  // namespace megalith

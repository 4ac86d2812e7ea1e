// See migration.h.
#include "compat/migration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/resolve.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

struct MigrationExample {
  FrontEnd front_end;
  const char* context;
  const char* word;
};

// A value of each variable that becomes options, and several where they mean different things.
constexpr MigrationExample kExamples[] = {
    {FrontEnd::kLlama3, "", "MODEL_SIZE=8"},
    {FrontEnd::kLlama3, "", "NUM_LAYERS=4"},
    {FrontEnd::kDeepseekV3, "MODEL_SIZE=671B NUM_LAYERS=4", "MOE_LAYER_FREQ=1"},
    {FrontEnd::kLlama3, "", "TP=4"},
    {FrontEnd::kLlama3, "", "PP=2"},
    {FrontEnd::kLlama3, "", "CP=2"},
    {FrontEnd::kMixtral, "", "EP=4"},
    {FrontEnd::kMixtral, "", "ETP=2"},
    {FrontEnd::kDeepseekV2, "PP=2", "MP_VP=2"},
    {FrontEnd::kLlama3, "", "SEQ_PARALLEL=0"},
    {FrontEnd::kLlama3, "", "MBS=4"},
    {FrontEnd::kLlama3, "", "BS=256"},
    {FrontEnd::kLlama3, "", "SEQ_LENGTH=8192"},
    {FrontEnd::kLlama3, "", "TOTAL_ITERS=50"},
    {FrontEnd::kDeepseekV2, "", "LR=2e-5"},
    {FrontEnd::kDeepseekV2, "", "MIN_LR=2e-6"},
    {FrontEnd::kLlama3, "", "PR=fp16"},
    {FrontEnd::kDeepseekV3, "", "PR=fp8"},
    {FrontEnd::kLlama3, "", "TE_FP8=1"},
    {FrontEnd::kLlama3, "TE_FP8=1", "TE_FP8_RECIPE=tensorwise"},
    {FrontEnd::kLlama3, "TE_FP8=1", "FP8_TRANSPOSE_CACHE=0"},
    {FrontEnd::kLlama3, "", "FSDP=1"},
    {FrontEnd::kLlama3, "", "MEGATRON_FSDP=1"},
    {FrontEnd::kLlama3, "", "OPTIMIZER=sgd"},
    {FrontEnd::kDeepseekV3, "", "AC=none"},
    {FrontEnd::kLlama3, "", "AC=sel"},
    {FrontEnd::kLlama3, "", "AC=full"},
    {FrontEnd::kLlama3, "", "RECOMPUTE=1"},
    {FrontEnd::kLlama3, "AC=full", "RECOMPUTE_METHOD=uniform"},
    {FrontEnd::kLlama3, "AC=full", "RECOMPUTE_NUM_LAYERS=12"},
    {FrontEnd::kLlama3, "", "USE_FLASH_ATTN=0"},
    {FrontEnd::kMixtral, "", "GEMM_TUNING=1"},
    {FrontEnd::kDeepseekV3, "", "FORCE_BALANCE=1"},
    {FrontEnd::kLlama3, "", "GRAD_REDUCE_IN_BF16=1"},
    {FrontEnd::kLlama3, "", "LOG_INTERVAL=10"},
    {FrontEnd::kLlama3, "", "EVAL_INTERVAL=100"},
    {FrontEnd::kLlama3, "", "SAVE_INTERVAL=500"},
    {FrontEnd::kLlama3, "", "SAVE_CKPT_PATH=checkpoints"},
    {FrontEnd::kLlama3, "", "LOAD_CKPT_PATH=checkpoints"},
    {FrontEnd::kLlama3, "DATA_PATH=data/bookcorpus_text_sentence", "MOCK_DATA=0"},
    {FrontEnd::kLlama3, "MOCK_DATA=0", "DATA_PATH=data/wiki_text_document"},
    {FrontEnd::kLlama3, "MOCK_DATA=0", "DATA_DIR=data"},
    {FrontEnd::kLlama3, "MOCK_DATA=0 DATA_DIR=data", "DATA_CACHE_PATH=/root/cache"},
    {FrontEnd::kLlama3, "MOCK_DATA=0 DATA_DIR=data", "TOKENIZER_MODEL=NousResearch/Llama-2-7b-chat-hf"},
    {FrontEnd::kLlama2, "MOCK_DATA=0 DATA_DIR=data TOKENIZER_MODEL=tokenizer.model", "TOKENIZER_TYPE=Llama2Tokenizer"},
    {FrontEnd::kGpt, "DATA_PATH=data/wiki_text_document", "VOCAB_FILE=vocab.json"},
    {FrontEnd::kGpt, "DATA_PATH=data/wiki_text_document", "MERGE_FILE=merges.txt"},
    {FrontEnd::kBert, "MOCK_DATA=1", "CHECKPOINT_PATH=checkpoints"},
    {FrontEnd::kIct, "MOCK_DATA=1", "PRETRAINED_BERT_PATH=bert"},
    {FrontEnd::kIct, "DRY_RUN=1", "TEXT_DATA_PATH=data/wiki_text_sentence"},
    {FrontEnd::kIct, "TEXT_DATA_PATH=data/wiki_text_sentence", "TITLE_DATA_PATH=data/wiki_title_document"},
    {FrontEnd::kLlama3, "LOG_DIR=logs", "ENABLE_PROFILING=1"},
    {FrontEnd::kLlama3, "LOG_DIR=logs ENABLE_PROFILING=1", "PROFILE_START=4"},
    {FrontEnd::kLlama3, "LOG_DIR=logs ENABLE_PROFILING=1", "PROFILE_END=9"},
};

constexpr MigratedCommand kCommands[] = {
    {"000:234", FrontEnd::kLlama3, "bash", "examples/llama/train_llama3.sh",
     "TEE_OUTPUT=1 RECOMPUTE=1 SEQ_LENGTH=8192 MBS=2 BS=16 TE_FP8=0 TP=1 PP=1 FSDP=1 MODEL_SIZE=70 TOTAL_ITERS=50", "",
     "", "examples/megatron/configs/llama3.1_70B-pretrain.yaml", "examples/run_pretrain.sh",
     "--micro_batch_size 2 --global_batch_size 16 --train_iters 50",
     "--lr 1e-4 --min_lr 1e-5 --lr_warmup_iters null --lr_decay_iters 320000 --init_method_std 0.02 --norm_epsilon "
     "1e-5 "
     "--max_position_embeddings 131072 --eod_mask_loss false --gemm_tuning tune"},
    {"000:248", FrontEnd::kLlama3, "bash", "examples/llama/train_llama3.sh",
     "TEE_OUTPUT=1 MBS=2 BS=256 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 MASTER_ADDR=IP_NODE0 NNODES=2 NODE_RANK=0",
     "", "MASTER_ADDR=IP_NODE0 NNODES=2 NODE_RANK=0", "examples/megatron/configs/llama3.1_8B-pretrain.yaml",
     "examples/run_pretrain.sh", "--global_batch_size 256 --train_iters 10 --fp8 hybrid",
     "--lr 1e-4 --min_lr 1e-5 --lr_warmup_iters null --lr_decay_iters 320000 --init_method_std 0.02 --norm_epsilon "
     "1e-5 "
     "--max_position_embeddings 131072 --eod_mask_loss false --gemm_tuning tune"},
    {"000:251", FrontEnd::kLlama3, "bash", "examples/llama/train_llama3.sh",
     "TEE_OUTPUT=1 MBS=2 BS=256 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 MASTER_ADDR=IP_NODE0 NNODES=2 NODE_RANK=1",
     "", "MASTER_ADDR=IP_NODE0 NNODES=2 NODE_RANK=1", "examples/megatron/configs/llama3.1_8B-pretrain.yaml",
     "examples/run_pretrain.sh", "--global_batch_size 256 --train_iters 10 --fp8 hybrid",
     "--lr 1e-4 --min_lr 1e-5 --lr_warmup_iters null --lr_decay_iters 320000 --init_method_std 0.02 --norm_epsilon "
     "1e-5 "
     "--max_position_embeddings 131072 --eod_mask_loss false --gemm_tuning tune"},
    {"000:255", FrontEnd::kDeepseekV3, "sbatch", "examples/deepseek_v3/train_deepseek_v3_slurm.sh", "",
     "SLURM=1 NNODES=16 MODEL_SIZE=671B NUM_LAYERS=32 MOE_LAYER_FREQ=1 TP=2 PP=16 EP=4 MBS=1 BS=32 AC=full",
     "NNODES=16", "examples/megatron/configs/deepseek_v3-pretrain.yaml", "examples/run_slurm_pretrain.sh",
     "--num_layers 32 --moe_layer_freq 1 --train_iters 10 --micro_batch_size 1 --global_batch_size 32 "
     "--tensor_model_parallel_size 2 --sequence_parallel true --pipeline_model_parallel_size 16 "
     "--expert_model_parallel_size 4 --expert_tensor_parallel_size 1 --recompute_granularity full "
     "--recompute_method block --recompute_num_layers 1",
     "--min_lr 1e-6 --moe_aux_loss_coeff 0.01 --moe_router_force_load_balancing false --mtp_num_layers 0 "
     "--max_position_embeddings 163840 --eod_mask_loss false"},
};

// What a variable of the processes or of logs is where no script reads it.
constexpr std::pair<std::string_view, std::string_view> kTypedOtherwise[] = {
    {"EXP", "`--config FILE`"},
    {"NNODES", "`torchrun --nnodes N`"},
    {"NODE_RANK", "`torchrun --node-rank N`"},
    {"MASTER_ADDR", "`torchrun --master-addr NAME`"},
    {"MASTER_PORT", "`torchrun --master-port N`"},
    {"GPUS_PER_NODE", "`torchrun --nproc-per-node N`"},
    {"DRY_RUN", "`--dry_run --dry_run_world_size N`"},
    {"TINY", "smaller sizes, as `doctor --parallel` chooses them"},
    {"SLURM", "`srun` in front"},
    {"CONTAINER", "`docker/run.sh`"},
    {"DOCKER_IMAGE", "the image that `docker/run.sh` starts"},
    {"CPUS_PER_TASK", "processors of a task, for `srun`"},
    {"NO_TRAINING", "`--dry_run`"},
    {"TEE_OUTPUT", "1 is `--log_file FILE`; 0 is `> FILE 2>&1`"},
    {"LOG_DIR", "the folder of `--log_file`"},
    {"EXP_NAME", "a part of the name in `--log_file`"},
    {"TRAIN_LOG", "`--log_file FILE`, and `--record_file` with `run.json` beside it"},
};

// As the guides of Primus spell it.
std::string spelled(const std::string& option) { return option == "fp8_format" ? "fp8" : option; }

std::string quoted_list(const std::vector<std::string>& texts) {
  return texts.empty() ? "" : fmt::format("`{}`", fmt::join(texts, "` `"));
}

std::string word_cell(const MigrationRow& row) {
  std::string cell = fmt::format("`{}`", row.word);
  const auto& spellings = row.variable->spellings;
  if (spellings.size() > 1)
    cell += fmt::format(", also `{}`", fmt::join(spellings.begin() + 1, spellings.end(), "`, `"));
  if (!row.context.empty()) cell += fmt::format(" beside `{}`", row.context);
  return cell;
}

std::string rows_text() {
  std::string text = "| variable | keys of an experiment file | options |\n| --- | --- | --- |\n";
  for (const MigrationRow& row : migration_rows()) {
    std::vector<std::string> keys, options;
    if (!row.config.empty()) {
      keys.push_back(fmt::format("model: {}.yaml", row.config));
      options.push_back(fmt::format("--config {}", row.config));
    }
    for (const auto& [name, value] : row.values) {
      keys.push_back(fmt::format("{}: {}", spelled(name), value));
      options.push_back(fmt::format("--{} {}", spelled(name), value));
    }
    text += fmt::format("| {} | {} | {} |\n", word_cell(row), quoted_list(keys), quoted_list(options));
  }
  return text;
}

std::string others_text() {
  std::string text = "| variable | Primus's scripts | without a script |\n| --- | --- | --- |\n";
  for (const ScriptVariable& row : script_variables()) {
    if (row.kind != VariableKind::kLaunching && row.kind != VariableKind::kLogging) continue;
    const auto found = std::find_if(std::begin(kTypedOtherwise), std::end(kTypedOtherwise),
                                    [&](const auto& one) { return one.first == row.name(); });
    MEGALITH_CHECK(found != std::end(kTypedOtherwise), "the migration guide does not say what {} is", row.name());
    text += fmt::format("| `{}` | {} | {} |\n", row.name(), row.acts_in(FrontEnd::kPrimus) ? "the same" : "none",
                        found->second);
  }
  return text;
}

std::string unsupported_text() {
  std::string text = "| variable | why |\n| --- | --- |\n";
  for (const ScriptVariable& row : script_variables()) {
    if (row.kind == VariableKind::kNoEffect) text += fmt::format("| `{}` | no effect: {} |\n", row.name(), row.reason);
    if (row.kind == VariableKind::kRefused) text += fmt::format("| `{}` | refused: {} |\n", row.name(), row.reason);
  }
  return text;
}

// A command over several lines, each at most so long.
std::string folded(const std::string& command, std::string_view indent) {
  constexpr size_t kColumns = 100;
  std::string text;
  const std::vector<std::string> lines = wrap(command, kColumns);
  for (size_t i = 0; i < lines.size(); ++i) {
    text += fmt::format("{}{}{}\n", i == 0 ? "" : indent, lines[i], i + 1 < lines.size() ? " \\" : "");
  }
  return text;
}

std::string commands_text() {
  std::string text;
  for (const MigratedCommand& one : kCommands) {
    const auto with_space = [](std::string_view words) { return words.empty() ? "" : std::string(words) + " "; };
    text += "```sh\n# not run: it needs GPUs\n" +
            folded(fmt::format("{}{} {}", with_space(one.variables), one.launcher, one.script), "  ");
    if (!one.settings.empty()) text += fmt::format("# which sets {}\n", one.settings);
    text += "# in Primus's form:\n" + folded(fmt::format("{}EXP={} bash {} {}", with_space(one.primus_variables),
                                                         one.experiment, one.primus_script, one.options),
                                             "  ");
    text += "# and behind it, for the same numbers:\n" + folded("  " + std::string(one.same_numbers), "  ") + "```\n\n";
  }
  return text;
}

}  // namespace

LaunchPlan plan_example(FrontEnd front_end, const std::string& words) {
  LaunchInputs inputs;
  inputs.front_end = front_end;
  inputs.words = split_words(words);
  inputs.now = "now";
  inputs.count_gpus = [] { return 8; };
  inputs.exists = [](const std::string&) { return true; };
  LaunchPlan plan = plan_launch(inputs);
  throw_if_any(plan.errors);
  return plan;
}

std::vector<MigrationRow> migration_rows() {
  std::vector<MigrationRow> rows;
  for (const MigrationExample& one : kExamples) {
    const std::string word = one.word, context = one.context;
    MigrationRow row{.variable = find_script_variable(word.substr(0, word.find('='))),
                     .front_end = one.front_end,
                     .context = context,
                     .word = word,
                     .config = {},
                     .values = {}};
    MEGALITH_CHECK(row.variable != nullptr, "the migration guide shows {}, which is no variable", word);
    // MOCK_DATA=0 is refused without the word that names the data.
    const LaunchPlan without = plan_example(one.front_end, context == "MOCK_DATA=0" ? "" : context);
    const LaunchPlan with = plan_example(one.front_end, context + " " + word);
    if (with.config != without.config) row.config = with.config;
    for (const PlannedOption& option : with.options) {
      const PlannedOption* before = without.find(option.name);
      if (before == nullptr || before->value != option.value) row.values.emplace_back(option.name, option.value);
    }
    for (const PlannedOption& option : without.options) {
      if (with.find(option.name) == nullptr) {
        row.values.emplace_back(option.name, option.value == "true" ? "false" : "null");
      }
    }
    MEGALITH_CHECK(!row.config.empty() || !row.values.empty(), "{} changes nothing in the migration guide", word);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::span<const MigratedCommand> migrated_commands() { return kCommands; }

std::string migration_page() {
  return fmt::format(
      "# From one tool's words to another's\n\n"
      "People train with the variables of Megatron-LM's scripts, ROCm's or Stanford's, with the keys of Primus's\n"
      "experiment files, or with options. Here they stand side by side. This page is printed by\n"
      "`megalith launch --migration` from the table and the rules by which `megalith launch` reads variables; a test\n"
      "resolves every row in its three forms to one configuration. [scripts.md](scripts.md) says what each variable\n"
      "means and what it is unless it is set;\n"
      "[migrate_primus.md](migrate_primus.md) has keys that are no variables.\n\n"
      "## The model, its layout and its data\n\n"
      "What a word changes, and nothing else: `FSDP=1` switches off what it replaces, so there are several keys for "
      "it.\n"
      "A key stands below `overrides` of the file, but for `model`. `null` takes back what the script says by itself. "
      "A\n"
      "key also works as an option behind either tool's script, and wins over the variable.\n\n{}\n"
      "`train_data_path: FILES` of an experiment file reads the files whole for training; `data_path` divides them by\n"
      "`split`, as the scripts do.\n\n"
      "## Processes and logs\n\n{}\n"
      "Variables of libraries (`NCCL_IB_HCA`, `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `NCCL_IB_GID_INDEX`,\n"
      "`HF_TOKEN`, …) are the same for all: export them, or write them into `env:` of an experiment file.\n\n"
      "## What has no counterpart\n\n{}\n"
      "## Commands\n\n"
      "The training commands that the guide to ROCm's Megatron-LM prints, in the form of the guide to Primus. The two\n"
      "tools' files have other learning rates and the like by themselves: with the last lines the configurations are\n"
      "one. With `DRY_RUN=1` in front both show what they resolve to.\n\n{}"
      "`DATASET=wiki TOKENIZER_MODEL=… bash examples/llama/prepare_dataset.sh` prepares data for either: its prefix "
      "is\n"
      "`DATA_PATH` there, and `data_path` or `train_data_path` in a file. Container commands are in\n"
      "[images.md](images.md), judging a run as CVS does in [verify.md](verify.md).\n",
      rows_text(), others_text(), unsupported_text(), commands_text());
}

}  // namespace megalith

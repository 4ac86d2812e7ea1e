// The table's rows about AMD's PyTorch benchmarks: the flags of their two scripts.
#include "compat/variable.h"

namespace megalith {

std::vector<ScriptVariable> benchmark_variables() {
  using enum VariableKind;
  using enum VariableType;
  constexpr FrontEnds kReports = kBenchmarkScripts;
  std::vector<ScriptVariable> rows = {
      {{"-t"},
       kLaunching,
       kWord,
       kReports,
       "What is measured. pretrain and HF_pretrain train from scratch; the others fine-tune.",
       "004:277",
       {{kReports, "pretrain"}}},
      {{"-m", "--model_repo"},
       kLaunching,
       kText,
       kReports | kSetupScripts,
       "The model, or a tag of models.json; it is needed for a benchmark. The setup takes all models without it.",
       "004:292"},
      {{"-p"}, kOptions, kWord, kReports, "Precision of the layers' products.", "004:288", {{kReports, "BF16"}}},
      {{"-s"}, kOptions, kCount, kReports, "Tokens of a sample: 8192, and 4096 for Llama 2.", "004:264"},
      {{"-n"},
       kLaunching,
       kWord,
       kReports,
       "Number of GPUs. Without it, GPUS_PER_NODE.",
       "pytorch_benchmark_report.sh"},
      {{"-f"},
       kOptions,
       kSwitch,
       kReports,
       "1 divides weights, gradients and optimizer state over all ranks (FSDP2); 0 divides only the optimizer state.",
       "pytorch_benchmark_report.sh"},
      {{"-b"}, kOptions, kCount, kReports, "Samples of a GPU in a step.", "pytorch_benchmark_report.sh"},
  };
  for (ScriptVariable& row : rows) {
    if (row.name() == "-t") {
      row.words = {"pretrain", "HF_pretrain", "finetune_fw", "finetune_lora", "finetune_qlora", "HF_finetune_lora"};
    }
    if (row.name() == "-p") row.words = {"BF16", "FP8"};
    if (row.name() == "-n") row.words = {"1", "8"};
    if (row.name() == "-s") {
      row.least = 2048;
      row.most = 8192;
    }
  }
  return rows;
}

std::vector<ScriptVariable> finetuning_variables() {
  using enum VariableKind;
  using enum VariableType;
  constexpr FrontEnds kReports = kBenchmarkScripts;
  constexpr std::string_view kSource = "Torchtune_Tester.sh";
  std::vector<ScriptVariable> rows = {
      {{"GAS"}, kOptions, kCount, kReports, "Microbatches of a GPU in a step of fine-tuning: 1.", kSource},
      {{"MAX_STEPS"}, kOptions, kCount, kReports, "Steps of a pass of fine-tuning: 20.", kSource},
      {{"EPOCHS"}, kOptions, kCount, kReports, "Passes of MAX_STEPS steps: 1.", kSource},
      {{"SEED"}, kOptions, kCount, kReports, "Seed of fine-tuning: 42.", kSource},
      {{"PACKED"},
       kOptions,
       kSwitch,
       kReports,
       "1, which it is without a word, puts several texts into a sample.",
       kSource},
      {{"CPU_OFFLOAD"},
       kOptions,
       kSwitch,
       kReports,
       "1 keeps weights, gradients and optimizer state in the host's memory. Without it 1 for the 405B model, else 0.",
       kSource},
      {{"ACTIVATION_CHECKPOINTING"},
       kOptions,
       kSwitch,
       kReports,
       "0 keeps all activations in fine-tuning, instead of computing them again.",
       kSource},
      {{"TRAIN_FILE"},
       kOptions,
       kText,
       kReports,
       "Rows to fine-tune on, texts under the key input. Without it wikitext_train.json, which is made from the hub.",
       kSource},
      {{"MODEL_DIR"},
       kOptions,
       kText,
       kReports,
       "The weights to fine-tune, a folder or a name on the hub. Without it the published model of -m.",
       kSource},
      {{"COMPILE"}, kNoEffect, kSwitch, kReports, "nothing is compiled at the start", kSource},
  };
  for (ScriptVariable& row : rows) {
    if (row.kind == kNoEffect) row.reason = row.help;
  }
  return rows;
}

}  // namespace megalith

// The table's rows about the model, its layout, batch, precision and recomputation.
#include "compat/variable.h"

namespace megalith {
namespace {

using enum VariableKind;
using enum VariableType;

constexpr FrontEnds kV2 = only(FrontEnd::kDeepseekV2), kV3 = only(FrontEnd::kDeepseekV3);
constexpr FrontEnds kMix = only(FrontEnd::kMixtral), kLlama2 = only(FrontEnd::kLlama2);
constexpr std::string_view kNewerLlama = "train_llama3.sh (2026)";

ScriptVariable option(std::vector<std::string_view> spellings, VariableType type, FrontEnds front_ends,
                      std::string_view name, std::string_view help, std::string_view source,
                      std::vector<std::pair<FrontEnds, std::string_view>> defaults = {}) {
  return {std::move(spellings), kOption, type, front_ends, help, source, std::move(defaults), name};
}

ScriptVariable options(std::vector<std::string_view> spellings, VariableType type, FrontEnds front_ends,
                       std::string_view help, std::string_view source,
                       std::vector<std::pair<FrontEnds, std::string_view>> defaults = {},
                       std::vector<std::string_view> words = {}) {
  ScriptVariable row{std::move(spellings), kOptions, type, front_ends, help, source, std::move(defaults)};
  row.words = std::move(words);
  return row;
}

ScriptVariable no_effect(std::string_view spelling, VariableType type, FrontEnds front_ends, std::string_view reason,
                         std::string_view source) {
  ScriptVariable row{{spelling}, kNoEffect, type, front_ends, reason, source};
  row.reason = reason;
  return row;
}

ScriptVariable refused(std::string_view spelling, VariableType type, FrontEnds front_ends, std::string_view neutral,
                       std::string_view reason, std::string_view source) {
  ScriptVariable row{{spelling}, kRefused, type, front_ends, reason, source};
  row.reason = reason;
  row.neutral = neutral;
  return row;
}

std::vector<ScriptVariable> sizes() {
  std::vector<ScriptVariable> rows = {
      options({"MODEL_SIZE"}, kText, kRocmScripts,
              "Size of the model, with or without its B: 8, 8B and 8b are one. tiny is TINY=1.", "000:282"),
      option({"NUM_LAYERS"}, kCount, kRocmScripts, "num_layers", "Fewer layers, as a proxy of the model.", "000:312"),
      options({"MOE_LAYER_FREQ"}, kText, kDeepseeks,
              "Which layers have experts: 1 is all of them. Without it NUM_LAYERS keeps the model's own pattern, cut.",
              "train_deepseekv3.sh"),
      option({"TP", "TP_SIZE"}, kCount, kRocmScripts, "tensor_model_parallel_size",
             "Ranks that share every matrix. FSDP=1 makes it 1.", "000:297",
             {{kLlamas | kMix, "8"}, {kDeepseeks, "1"}}),
      option({"PP", "PP_SIZE"}, kCount, kRocmScripts, "pipeline_model_parallel_size", "Stages of the pipeline.",
             "000:234", {{kRocmScripts, "1"}}),
      option({"CP", "CP_SIZE"}, kCount, kRocmScripts, "context_parallel_size", "Ranks that share every sequence.",
             "train_llama3.sh", {{kRocmScripts, "1"}}),
      option({"EP", "EP_SIZE"}, kCount, kExpertScripts, "expert_model_parallel_size", "Ranks that share the experts.",
             "000:300", {{kV2 | kMix, "8"}, {kV3, "1"}}),
      option({"ETP", "ETP_SIZE"}, kCount, kExpertScripts, "expert_tensor_parallel_size",
             "Ranks that share every expert's matrices.", "train_deepseekv3.sh", {{kExpertScripts, "1"}}),
      option({"MP_VP"}, kCount, kV2, "num_layers_per_virtual_pipeline_stage",
             "Layers of a part of the interleaved pipeline.", "train_deepseekv2.sh"),
      option({"SEQ_PARALLEL", "SP"}, kSwitch, kRocmScripts, "sequence_parallel",
             "Split norms and the residual stream over the tensor-parallel ranks. FSDP=1 switches it off.",
             "train_llama3.sh", {{kRocmScripts, "1"}}),
      option({"MBS", "MICRO_BATCH_SIZE"}, kCount, kRocmScripts | kBenchmarkScripts, "micro_batch_size",
             "Samples of one pass.", "000:291", {{kLlamas, "2"}, {kV2 | kMix, "4"}, {kV3, "1"}}),
      option({"BS", "GBS", "GLOBAL_BATCH_SIZE"}, kCount, kRocmScripts, "global_batch_size",
             "Samples of one optimizer step, of all ranks.", "000:294",
             {{kLlamas, "8"}, {kV2, "256"}, {kV3, "128"}, {kMix, "64"}}),
      option({"SEQ_LENGTH", "SEQ_LEN", "SEQLEN"}, kCount, kRocmScripts | kBenchmarkScripts, "seq_length",
             "Tokens of a sample.", "000:303",
             {{kLlama2, "4096"}, {only(FrontEnd::kLlama3), "2048"}, {kV2, "2048"}, {kV3 | kMix, "4096"}}),
      option({"TOTAL_ITERS", "TRAIN_ITERS"}, kCount, kRocmScripts, "train_iters", "Optimizer steps of the run.",
             "000:285", {{kRocmScripts, "10"}}),
      option({"LR"}, kNumber, kV2, "lr", "Peak learning rate.", "train_deepseekv2.sh"),
      option({"MIN_LR"}, kNumber, kV2, "min_lr", "Learning rate at the end of the decay.", "train_deepseekv2.sh"),
  };
  return rows;
}

std::vector<ScriptVariable> precision_and_memory() {
  std::vector<ScriptVariable> rows = {
      options({"PR"}, kWord, kRocmScripts, "Precision: bf16, fp16, or fp8 for the layers' products in eight bits.",
              "000:306", {{kRocmScripts, "bf16"}}, {"bf16", "fp16", "fp8"}),
      options({"TE_FP8"}, kSwitch, kRocmScripts, "1 for FP8 products, 0 for bf16.", "000:264", {{kRocmScripts, "0"}}),
      options({"TE_FP8_RECIPE"}, kWord, kLlamas, "How FP8's scales are found.", kNewerLlama,
              {{kRocmScripts, "delayed"}}, {"delayed", "tensorwise", "blockwise", "mxfp8"}),
      refused("TE_FP4", kSwitch, kLlamas, "0", "products in four bits, which this program does not have", kNewerLlama),
      options(
          {"FSDP"}, kSwitch, kRocmScripts,
          "1 divides weights, gradients and optimizer state over the data-parallel ranks (FSDP2). TP is then 1, and "
          "sequence_parallel, use_distributed_optimizer and overlap_param_gather are off.",
          "000:273", {{kRocmScripts, "0"}}),
      options({"MEGATRON_FSDP"}, kSwitch, kLlamas, "1 is FSDP=1: Megatron-LM's own FSDP divides the same.",
              kNewerLlama),
      refused("ENABLE_HSDP", kSwitch, kLlamas, "0",
              "FSDP in several copies: type --num_distributed_optimizer_instances N beside FSDP=1", kNewerLlama),
      no_effect("HSDP_NUM_REPLICAS", kCount, kLlamas, "read only by ENABLE_HSDP=1", kNewerLlama),
      options({"OPTIMIZER"}, kWord, kLlamas,
              "adam also divides its state over the data-parallel ranks (use_distributed_optimizer, "
              "overlap_param_gather).",
              "train_llama3.sh", {{kRocmScripts, "adam"}}, {"adam", "sgd"}),
      options({"AC"}, kWord, kRocmScripts, "Recomputation: none, sel (selective) or full.", "000:309",
              {{kExpertScripts, "sel"}}, {"none", "sel", "full"}),
      options({"RECOMPUTE"}, kSwitch, kRocmScripts, "1 recomputes all layers, block by block: full, block, all layers.",
              "000:234"),
      options({"RECOMPUTE_METHOD"}, kWord, kRocmScripts, "With AC=full.", "train_deepseekv3.sh",
              {{kV2, "uniform"}, {kRocmScripts, "block"}}, {"block", "uniform"}),
      options({"RECOMPUTE_NUM_LAYERS"}, kCount, kRocmScripts,
              "With AC=full: layers that are recomputed (block), or layers of a group (uniform).", "000:315",
              {{kV2, "27"}, {kV3, "1"}}),
      options({"USE_FLASH_ATTN"}, kSwitch, kRocmScripts,
              "0 computes attention by the reference, which is slow and keeps a matrix of scores. Without it attention "
              "is fused.",
              "000:270"),
      options({"GEMM_TUNING"}, kSwitch, kRocmScripts,
              "1 times the algorithms of every matrix product on GPUs and takes the quickest (gemm_tuning tune).",
              "000:267", {{kLlamas, "1"}, {kExpertScripts, "0"}}),
  };
  return rows;
}

std::vector<ScriptVariable> switches() {
  constexpr std::string_view kFused = "operators are fused wherever there is a fused form, with the same results";
  constexpr std::string_view kGrouped = "experts are always computed as one grouped product";
  std::vector<ScriptVariable> rows = {
      option({"FORCE_BALANCE"}, kSwitch, kV3, "moe_router_force_load_balancing",
             "Send tokens to experts in turn, for benchmarks.", "train_deepseekv3.sh"),
      option({"GRAD_REDUCE_IN_BF16"}, kSwitch, kLlamas, "grad_reduce_in_bf16", "Gradients travel in bf16.",
             kNewerLlama),
      option({"FP8_TRANSPOSE_CACHE"}, kSwitch, kLlamas, "keep_fp8_weight_transpose_cache",
             "Keep the transposes of FP8 weights during a step.", kNewerLlama),
      option({"LOG_INTERVAL"}, kCount, kLlamas, "log_interval", "Steps from one iteration line to the next.",
             kNewerLlama),
      option({"EVAL_INTERVAL"}, kCount, kLlamas, "eval_interval", "Evaluate at iterations divisible by this.",
             kNewerLlama),
      option({"SAVE_INTERVAL"}, kCount, kLlamas, "save_interval", "Iterations from one checkpoint to the next.",
             kNewerLlama),
      option({"SAVE_CKPT_PATH"}, kText, kLlamas, "save", "Folder for checkpoints.", kNewerLlama),
      option({"LOAD_CKPT_PATH"}, kText, kLlamas, "load", "Folder to resume from.", kNewerLlama),
      refused("SAVE", kSwitch, kV2, "0", "saving without a folder: name one with SAVE_CKPT_PATH",
              "train_deepseekv2.sh"),
      no_effect("MCORE", kSwitch, kLlamas, "there is one implementation", "train_llama3.sh"),
      no_effect("CONTI_PARAMS", kSwitch, kLlamas, "gradients always lie in one buffer", "train_llama3.sh"),
      no_effect("ROPE_FUSION", kSwitch, kLlamas, kFused, "train_llama3.sh"),
      no_effect("FUSED_SINGLE_QKV_ROPE", kSwitch, kLlamas, kFused, kNewerLlama),
      no_effect("CROSS_ENTROPY_LOSS_FUSION", kSwitch, kLlamas, kFused, kNewerLlama),
      no_effect("GRADIENT_ACCUMULATION_FUSION", kSwitch, kLlamas, "gradients are always added in place", kNewerLlama),
      no_effect("DDP_AVERAGE_IN_COLLECTIVE", kSwitch, kLlamas, "a step's loss is divided once, by its tokens",
                kNewerLlama),
      no_effect("FP8_PARAM_GATHER", kSwitch, kLlamas, "weights are held in the model's precision", kNewerLlama),
      no_effect("CKPT_FORMAT", kText, kLlamas, "there is one checkpoint format, which loads under every layout",
                kNewerLlama),
      no_effect("USE_GROUPED_GEMM", kSwitch, kV3, kGrouped, "train_deepseekv3.sh"),
      no_effect("MOE_USE_LEGACY_GROUPED_GEMM", kSwitch, kV3, kGrouped, "train_deepseekv3.sh"),
      no_effect("ENABLE_DEEP_EP", kSwitch, kV3, "tokens travel by the group's own collectives", "train_deepseekv3.sh"),
      no_effect("PAD_LEN", kCount, kV2, "samples are always full", "train_deepseekv2.sh"),
  };
  return rows;
}

}  // namespace

std::vector<ScriptVariable> model_variables() {
  std::vector<ScriptVariable> rows = sizes();
  for (auto part : {precision_and_memory, switches}) {
    for (ScriptVariable& row : part()) rows.push_back(std::move(row));
  }
  for (ScriptVariable& row : rows) {
    if (row.name() == "RECOMPUTE_NUM_LAYERS") row.least = 0;
  }
  return rows;
}

}  // namespace megalith

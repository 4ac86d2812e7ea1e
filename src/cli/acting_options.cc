// The table behind acting_options.h.
#include "cli/acting_options.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "train/config.h"

namespace megalith {
namespace {

using Names = std::vector<std::string_view>;

// The options that act: those of the groups but for `except`, and those of `names`.
struct ActingOptions {
  Names commands, groups, names, except;
};

// A model's description, its precision, and where it comes from. Groups that a later family adds belong here.
const Names kModelGroups = {"Model",
                            "Mixture of experts",
                            "Latent attention",
                            "Multi-token prediction",
                            "Precision",
                            "Tokenizer",
                            "Hugging Face hub",
                            "Retrieval",
                            "Diffusion",
                            "Device"};
// The layout of a model over ranks. The words of a layout go together, so all of them are taken where some act.
const Names kLayoutGroups = {"Parallelism", "Pipeline parallelism"};
constexpr std::string_view kAdapters = "Low-rank adapters";
const Names kWeights = {"load", "load_hf", "ckpt_step"};
const Names kAdapterWeights = {"adapter"};
// Commands that read weights and write files.
const Names kFiles = {"allow_nonfinite_weights", "overwrite"};
const Names kShapes = {"micro_batch_size", "global_batch_size", "seq_length"};
const Names kWords = {"quiet", "verbose"};         // how much is said
const Names kMemory = {"allow_oversubscription"};  // what is checked before weights are read
// Read only while a model trains.
const Names kTraining = {"loss_scale",        "initial_loss_scale", "min_loss_scale",
                         "loss_scale_window", "hysteresis",         "num_distributed_optimizer_instances",
                         "fail_on_host_sync", "extra_vocab_size"};
// Where products are measured by themselves: nothing is remembered between them, and no layer is the first.
const Names kEightBitsOfLayers = {"fp8_margin",
                                  "fp8_amax_history_len",
                                  "fp8_amax_compute_algo",
                                  "fp8_wgrad",
                                  "keep_fp8_weight_transpose_cache",
                                  "first_last_layers_bf16",
                                  "num_layers_at_start_in_bf16",
                                  "num_layers_at_end_in_bf16"};

Names joined(std::initializer_list<Names> parts) {
  Names all;
  for (const Names& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A name that is nobody's would make an option disappear.
std::vector<ActingOptions> checked(std::vector<ActingOptions> table) {
  Config config;
  const OptionSet options(config);
  for (const ActingOptions& row : table) {
    for (const Names* names : {&row.names, &row.except}) {
      for (const std::string_view name : *names) MEGALITH_CHECK(options.find(name), "no option is called {}", name);
    }
    for (const std::string_view group : row.groups) {
      const bool is_known = std::any_of(options.options().begin(), options.options().end(),
                                        [&](const auto& option) { return option->group() == group; });
      MEGALITH_CHECK(is_known, "no group is called {}", group);
    }
  }
  return table;
}

const ActingOptions* row_of(std::string_view command) {
  static const std::vector<ActingOptions> table = checked({
      {{"generate"},
       joined({kModelGroups, kLayoutGroups, {"Sampling", "Encoders of FLUX", kAdapters}}),
       joined({kWeights, kAdapterWeights, kFiles, kWords, kMemory, {"seed", "text_length"}}),
       kTraining},
      {{"evaluate"},
       joined({kModelGroups,
               kLayoutGroups,
               {"Task", "Data", "Pictures", "Encoders of FLUX", "Instruction tuning", kAdapters}}),
       joined({kWeights,
               kAdapterWeights,
               kFiles,
               kWords,
               kMemory,
               {"micro_batch_size", "global_batch_size", "decrease_batch_size_if_needed", "seq_length", "eval_iters",
                "seed"}}),
       joined({kTraining, {"num_workers", "loss", "dpo_beta", "dpo_reference"}})},
      {{"embed"},
       joined({kModelGroups, kLayoutGroups, {"Index of blocks"}}),
       joined({kWeights,
               kFiles,
               kWords,
               kMemory,
               {"micro_batch_size", "seq_length", "top_k", "data_path", "data_cache_path", "titles_data_path",
                "use_one_sent_docs", "allow_other_tokenizer"}}),
       kTraining},
      {{"inspect logits"}, kModelGroups, joined({kWeights, kFiles, kWords}), kTraining},
      {{"plan"},
       {"Pipeline parallelism"},
       {"model_type", "num_layers", "decoder_num_layers", "num_joint_layers", "num_single_layers", "mtp_num_layers",
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "micro_batch_size",
        "global_batch_size", "dry_run_world_size", "overwrite"},
       {}},
      {{"bench gemm"},
       kModelGroups,
       joined({kWeights, kShapes, {"overwrite"}}),
       joined({kTraining, kEightBitsOfLayers})},
      {{"bench ops", "bench attention", "bench moe"},
       kModelGroups,
       joined({kWeights, kShapes, {"overwrite"}}),
       joined({kTraining, kEightBitsOfLayers, {"fp8_format", "fp8_recipe"}})},
  });
  for (const ActingOptions& row : table) {
    if (has(row.commands, command)) return &row;
  }
  return nullptr;
}

}  // namespace

bool is_run_option(const Option& option) {
  static Config config;
  static const OptionSet options(config);
  return options.find(option.name()) != nullptr;
}

bool acts_in(std::string_view command, const Option& option) {
  const ActingOptions* row = row_of(command);
  if (row == nullptr || !is_run_option(option)) return true;
  return has(row->names, option.name()) || (has(row->groups, option.group()) && !has(row->except, option.name()));
}

}  // namespace megalith

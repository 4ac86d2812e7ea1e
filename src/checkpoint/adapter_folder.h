// Folders of low-rank adapters, as PEFT and diffusers write them, through Placement.
//
//   PEFT       adapter_config.json and adapter_model.safetensors, names "base_model.model." plus canonical
//   diffusers  pytorch_lora_weights.safetensors, names "transformer." plus canonical, with PEFT's configuration as
//              metadata; we add adapter_config.json
//
// An A shared by parts of a fused layer (linear_qkv) is written per part, which is equivalent. Adapters that began as
// parts of the weight (low_rank_adapter.h) are written as plain ones of twice the rank, [A; A0] and [B, -B0], beside
// the same model, as PEFT's path_initial_model_for_weight_conversion does it. Modules of lora.modules_to_save are whole
// tensors by their names.
// Source: PEFT, tuners/lora/config.py and utils/save_and_load.py; diffusers, loaders/lora_base.py and peft.py.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/hf.h"
#include "comm/groups.h"
#include "nn/adapter_options.h"

namespace megalith {

inline constexpr const char *kAdapterConfigFile = "adapter_config.json",
                            *kAdapterWeightsFile = "adapter_model.safetensors",
                            *kDiffusersAdapterFile = "pytorch_lora_weights.safetensors";

struct AdapterFolder {
  LoraOptions options;  // enabled
  std::string config;   // adapter_config.json, verbatim
};

// UserError: a missing or broken file, no lora_alpha in diffusers' file, other kinds of adapters, unsupported or
// unknown keys.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder);

// UserError for an image model's adapters with a text model, or vice versa.
void check_adapter_kind(const std::filesystem::path& folder, bool draws_pictures, const std::filesystem::path& model);

bool is_adapter_folder(const std::filesystem::path& folder);

// UserError, before anything changes, listing all missing, misshaped and unexpected tensors. Collective over the world.
// adapters: with modules that are saved with them.
void load_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

struct AdapterExport {
  LoraOptions options;
  bool is_of_diffusers = false;
  std::string base;                // the model's folder or hub name; may be empty
  std::string base_checksum = {};  // adapter_base.h; may be empty
  std::string config = {};         // the initial adapters', whose other keys are kept; may be empty
  HfExport settings = {};
};

// Writes for PEFT or diffusers, atomically; may replace adapters, UserError for other folders. Collective over the
// world.
void save_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  const AdapterExport& settings);

}  // namespace megalith

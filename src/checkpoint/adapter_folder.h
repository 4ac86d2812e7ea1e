// Folders of low-rank adapters, in and out through Placement, as PEFT and diffusers have them.
//
//   PEFT       adapter_config.json and adapter_model.safetensors, whose names are "base_model.model." and the canonical
//   diffusers  pytorch_lora_weights.safetensors, whose names are "transformer." and the canonical ones and whose
//              metadata has PEFT's configuration; we write adapter_config.json beside it
//
// Where the parts of a fused layer share one A (linear_qkv), it is written once for each part, which means the same.
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
  std::string config;   // adapter_config.json as it is there
};

// UserError when a file is missing or broken, for a file of diffusers' that does not tell lora_alpha, for another kind
// of adapter, and for keys that ask for what there is not, also for those that are not known here.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder);

// UserError where the adapters stand beside layers of the other kind of model: one that draws, or one that writes text.
void check_adapter_kind(const std::filesystem::path& folder, bool is_diffusion, const std::filesystem::path& model);

// Whether a folder holds adapters as PEFT or diffusers write them.
bool is_adapter_folder(const std::filesystem::path& folder);

// Fills the adapters' tensors. UserError, before anything is changed, that lists every missing, misshaped and
// unexpected tensor. Collective over the world.
void load_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

struct AdapterExport {
  LoraOptions options;
  bool is_of_diffusers = false;    // the form
  std::string base;                // the model's folder or name on the hub; empty: not known
  std::string base_checksum = {};  // checkpoint/adapter_base.h; empty: not known
  std::string config = {};         // of the folder that training began with: its other keys are kept; empty: none
  HfExport settings = {};
};

// Writes a folder that PEFT or diffusers loads; it appears whole or not at all, and replaces one of adapters. UserError
// when `folder` holds something else. Collective over the world.
void save_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  const AdapterExport& settings);

}  // namespace megalith

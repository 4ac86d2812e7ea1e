// Reads and writes folders of low-rank adapters through Placement, as PEFT and diffusers write them.
//
//   PEFT       adapter_config.json and adapter_model.safetensors, whose names are "base_model.model." and the canonical
//   diffusers  pytorch_lora_weights.safetensors, whose names are "transformer." and the canonical ones and whose
//              metadata has PEFT's configuration; we write adapter_config.json as well
//
// An A shared by the parts of a fused layer (linear_qkv) is written once per part, which is equivalent.
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

// UserError when a file is missing or broken, diffusers' file lacks lora_alpha, or for other kinds of adapters and
// unsupported or unknown keys.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder);

// UserError if adapters of an image model are used with a text model, or vice versa.
void check_adapter_kind(const std::filesystem::path& folder, bool draws_pictures, const std::filesystem::path& model);

// True if the folder holds adapters of PEFT or diffusers.
bool is_adapter_folder(const std::filesystem::path& folder);

// Fills the adapters' tensors. UserError, before anything changes, listing every missing, misshaped and unexpected
// tensor. Collective over the world.
void load_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

struct AdapterExport {
  LoraOptions options;
  bool is_of_diffusers = false;
  std::string base;                // the model's folder or hub name; empty: unknown
  std::string base_checksum = {};  // checkpoint/adapter_base.h; empty: unknown
  std::string config = {};         // of the initial adapters' folder, whose other keys are kept; empty: none
  HfExport settings = {};
};

// Writes a folder that PEFT or diffusers loads, atomically; may replace adapters. UserError when `folder` holds
// something else. Collective over the world.
void save_adapter(const std::filesystem::path& folder, std::span<const CheckpointTensor> adapters, const Groups& groups,
                  const AdapterExport& settings);

}  // namespace megalith

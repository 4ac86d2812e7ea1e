// Reads torchtune's recipe files (YAML) for full fine-tuning and LoRA as our configuration: `megalith train --config
// 70B_lora.yaml batch_size=4 ~lr_scheduler`.
//
// Words KEY=VALUE and ~KEY change the recipe before it is read, as in `tune run`. Unset keys have torchtune's defaults.
// Keys without effect are noted; what has no counterpart is an error with file and line. Source:
// meta-pytorch/torchtune, recipes/ and torchtune/config.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/yaml_config.h"

namespace megalith {

// True for a recipe: YAML that names a component.
bool is_torchtune_recipe(const std::filesystem::path& file);

// As read_config_file(): problems are in `errors`.
ConfigFile read_torchtune_recipe(const std::filesystem::path& file, const std::vector<std::string>& words,
                                 const std::filesystem::path& config_root, const EnvironmentMap& environment);

}  // namespace megalith

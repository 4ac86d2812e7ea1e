// Recipe files of torchtune (YAML) for full fine-tuning and LoRA, read as a configuration of ours:
// `megalith train --config 70B_lora.yaml batch_size=4 ~lr_scheduler`.
//
// Words KEY=VALUE and ~KEY change the recipe before it is read, as `tune run` takes them. What the recipe does not say
// has torchtune's own value. Keys that change nothing here are named in a note; what has no counterpart is an error
// with file and line. Source: meta-pytorch/torchtune, recipes/ and torchtune/config.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/resolve.h"
#include "config/yaml_config.h"

namespace megalith {

// Whether a file is such a recipe: YAML in which a component is named.
bool is_torchtune_recipe(const std::filesystem::path& file);

// Where the arguments' configuration file is a recipe, it will be read as one, with the words among the arguments that
// are the recipe's; these are taken from the arguments.
void adopt_torchtune_recipe(ConfigInputs& inputs);

// As read_config_file(): what is wrong is in `errors`.
ConfigFile read_torchtune_recipe(const std::filesystem::path& file, const std::vector<std::string>& words,
                                 const std::filesystem::path& config_root, const EnvironmentMap& environment);

}  // namespace megalith

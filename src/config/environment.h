// Options from the environment: MEGALITH_<OPTION>, above files and below the command line.
//
//   MEGALITH_TRAIN_ITERS=50 megalith train --config recipe.yaml
//
// Variables of Megatron's and Primus's scripts for other layers (NVTE_…, HSA_…, GPU_…) are noted once: they do not
// affect this program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/known_names.h"
#include "config/option.h"
#include "config/setting.h"
#include "config/yaml_document.h"

namespace megalith {

struct EnvironmentSettings {
  std::vector<Setting> settings;
  std::vector<std::string> notes;
};

EnvironmentSettings read_environment(const EnvironmentMap& environment, const OptionSet& options,
                                     const OtherCommands& others = {});

EnvironmentMap environment_snapshot();

}  // namespace megalith

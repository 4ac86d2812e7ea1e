// A configuration file, in Primus's layout or flat.
//
//   work_group: amd                      flat: options at the top level
//   exp_name: llama3.1_8B-pretrain       lr: 1e-5
//   env: {NCCL_DEBUG: WARN}              micro_batch_size: 2
//   modules:                             model: llama3.1_8B.yaml     # a preset, as under modules
//     pre_trainer:                       env: {…}
//       framework: megatron
//       config: pre_trainer.yaml         trainer preset
//       model: llama3.1_8B.yaml          model preset
//       overrides:
//         lr: 1e-5
//
// A model preset is itself a flat file. `model` and `config` name files beside the experiment, else those of the Primus
// tree that it is in (primus/configs/), else below <config root>/models and <config root>/modules (a leading
// "megatron/", or "torchtitan/" with that framework, may be left away).
// Layers: presets kPreset, the rest kFile. Where both presets set a key, the model preset wins and a note says so.
// Source: Primus examples/megatron/configs, primus/core/launcher/parser.py.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "config/setting.h"
#include "config/yaml_document.h"
#include "core/error.h"

namespace megalith {

struct ConfigFile {
  std::vector<Setting> settings;               // presets first, in order of application
  std::vector<Setting> header;                 // work_group, user_name, exp_name, workspace: options only if declared
  std::map<std::string, std::string> exports;  // the experiment's `env`, $VAR and ${VAR} expanded
  std::vector<std::string> notes;
  std::vector<UserError> errors;
  std::string framework;  // as in the file; torchtitan's settings keep its keys (compat/torchtitan_job.h)
};

// Reads a file and those it is composed of. Never throws UserError: see `errors`. config_root may be empty. resolve.h
// decides whether keys are options.
ConfigFile read_config_file(const std::filesystem::path& file, const std::filesystem::path& config_root,
                            const EnvironmentMap& environment);

}  // namespace megalith

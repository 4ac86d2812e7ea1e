// Reads torchtitan's job files (TOML), and Primus's experiments with framework: torchtitan (YAML with the same keys),
// as our configuration: `--config llama3_8b.toml`.
//
// Keys that a file leaves out have torchtitan's own values, not ours. Keys that change nothing here are named in a
// note, what cannot be done is an error with file and line. Source: torchtitan v0.2.2, torchtitan/config/job_config.py.
#pragma once

#include <filesystem>

#include "config/yaml_config.h"

namespace megalith {

// As read_config_file(): problems are in `errors`.
ConfigFile read_torchtitan_job(const std::filesystem::path& file, const std::filesystem::path& config_root,
                               const EnvironmentMap& environment);

// One of the configurations that torchtitan's main has by name (configs/torchtitan/MODULE.toml): --module llama3
// --config llama3_8b.
ConfigFile read_torchtitan_name(const std::filesystem::path& module, const std::string& name,
                                const std::filesystem::path& config_root, const EnvironmentMap& environment);

// As read_config_file(), for any Primus experiment.
ConfigFile read_primus_file(const std::filesystem::path& file, const std::filesystem::path& config_root,
                            const EnvironmentMap& environment);

}  // namespace megalith

// Configurations by name: what came with the program lies in models/, experiments/ and recipes/ of its configurations,
// and `--config llama3.1_8B` finds it from any folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

struct Preset {
  std::string name;            // "llama3.1_8B"; others' begin with "experiments/" or "recipes/"
  std::filesystem::path file;  // of YAML
  bool is_experiment = false;  // a whole recipe; otherwise a model
};

// The comment that a preset's file begins with, in one line.
std::string about(const Preset& preset);

// What a folder of configurations holds: models first, then experiments and recipes, each by name. Empty where there is
// no such folder.
std::vector<Preset> list_presets(const std::filesystem::path& config_root);

// The file that `--config TEXT` means: a file of that path, else the model, else the experiment or recipe of that name
// (".yaml" may be left away, and so may the case of letters where that is clear). UserError: there is neither; it names
// the nearest preset.
std::filesystem::path find_config(const std::string& text, const std::filesystem::path& config_root);

}  // namespace megalith

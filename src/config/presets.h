// Named configurations: the program's own, in models/, experiments/ and recipes/, which `--config llama3.1_8B` finds
// from any folder.
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

// The file's leading comment, in one line.
std::string about(const Preset& preset);

// A folder's configurations: models, then experiments and recipes, each by name. Empty if there is no such folder.
std::vector<Preset> list_presets(const std::filesystem::path& config_root);

// The file of `--config TEXT`: an existing path, else the model, else the experiment or recipe of that name (".yaml"
// optional; letter case too if unambiguous). UserError names the nearest preset.
std::filesystem::path find_config(const std::string& text, const std::filesystem::path& config_root);

}  // namespace megalith

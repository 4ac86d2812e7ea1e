#include "compat/file_dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "compat/finetuner_file.h"
#include "compat/torchtitan_job.h"
#include "compat/torchtune_recipe.h"
#include "compat/torchtune_words.h"
#include "config/presets.h"
#include "core/error.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// The words of an entry (config/dialects/entries.table) before its arguments.
constexpr std::string_view kEntry = "--dialect=";

std::optional<std::string> take_entry(std::vector<std::string>& arguments) {
  if (arguments.empty() || !arguments[0].starts_with(kEntry)) return std::nullopt;
  std::string name = arguments[0].substr(kEntry.size());
  arguments.erase(arguments.begin());
  return name;
}

// The last --config among the arguments.
std::optional<std::string> config_among(const std::vector<std::string>& arguments) {
  std::optional<std::string> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const std::string_view name : {"--config", "--exp"}) {
      const std::string& word = arguments[i];
      if (word == name && i + 1 < arguments.size()) found = arguments[i + 1];
      if (word.starts_with(name) && word.size() > name.size() && word[name.size()] == '=') {
        found = word.substr(name.size() + 1);
      }
    }
  }
  return found;
}

// `axolotl train FILE` names its file without --config, and `trl sft` may have none.
void name_config(std::vector<std::string>& arguments) {
  if (config_among(arguments)) return;
  const bool names_file =
      !arguments.empty() && !arguments[0].starts_with("--") && arguments[0].find('=') == std::string::npos;
  if (!names_file) arguments.insert(arguments.begin(), "/dev/null");
  arguments.insert(arguments.begin(), "--config");
}

std::vector<std::string> take_words(std::vector<std::string>& arguments,
                                    const std::function<bool(const std::string& word)>& is_theirs) {
  std::vector<std::string> words;
  std::erase_if(arguments, [&](const std::string& word) {
    if (!is_theirs(word)) return false;
    words.push_back(word);
    return true;
  });
  return words;
}

// --module MODULE --config NAME of torchtitan's main: a table of configs/torchtitan/MODULE.toml.
void adopt_torchtitan_name(ConfigInputs& inputs, const std::string& name) {
  std::optional<std::string> module;
  std::vector<std::string>& words = inputs.arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--module=")) {
      module = words[i].substr(words[i].find('=') + 1);
      words.erase(words.begin() + static_cast<ptrdiff_t>(i--));
    } else if (words[i] == "--module" && i + 1 < words.size()) {
      module = words[i + 1];
      words.erase(words.begin() + static_cast<ptrdiff_t>(i), words.begin() + static_cast<ptrdiff_t>(i) + 2);
      --i;
    }
  }
  if (!module) return;
  const fs::path file = inputs.config_root / "torchtitan" / (*module + ".toml");
  std::error_code ignored;
  if (module->find('/') != std::string::npos || !fs::is_regular_file(file, ignored)) {
    throw UserError(fmt::format("torchtitan's module {} is not read", *module),
                    "take llama3, qwen3, deepseek_v3, gpt_oss or flux, or a model of ours ('megalith presets')");
  }
  for (std::string& word : words) {
    if (word == name) word = file.string();
    if (word == "--config=" + name) word = "--config=" + file.string();
  }
  inputs.readers[".toml"] = [file, name](const fs::path& path, const fs::path& root,
                                         const EnvironmentMap& environment) {
    return path == file ? read_torchtitan_name(path, name, root, environment)
                        : read_torchtitan_job(path, root, environment);
  };
}

}  // namespace

void adopt_file_dialect(ConfigInputs& inputs) {
  const std::optional<std::string> entry = take_entry(inputs.arguments);
  if (entry) name_config(inputs.arguments);
  std::optional<std::string> config = config_among(inputs.arguments);
  if (!config) return;
  adopt_torchtitan_name(inputs, *config);
  config = config_among(inputs.arguments);
  fs::path file;
  try {
    file = find_config(*config, inputs.config_root);
  } catch (const UserError&) {
    return;
  }
  ConfigFileReader read;
  if (!entry && is_torchtune_recipe(file)) {
    read = [words = take_words(inputs.arguments, is_recipe_word)](
               const fs::path& path, const fs::path& root, const EnvironmentMap& environment) {
      return read_torchtune_recipe(path, words, root, environment);
    };
  } else if (const Finetuner* tuner = entry ? find_finetuner(*entry) : finetuner_of(file)) {
    FinetunerWords words = take_finetuner_words(inputs.arguments, *tuner, /*has_flags=*/entry.has_value());
    read = [tuner, words = std::move(words)](const fs::path& path, const fs::path& root,
                                             const EnvironmentMap& environment) {
      return read_finetuner_file(*tuner, path, words, root, environment);
    };
  } else {
    return;
  }
  inputs.readers[file.extension().string()] = [file, read](const fs::path& path, const fs::path& root,
                                                           const EnvironmentMap& environment) {
    return path == file ? read(path, root, environment) : read_primus_file(path, root, environment);
  };
}

}  // namespace megalith

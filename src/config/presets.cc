// Names of presets; see presets.h.
#include "config/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// Folders of whole configurations, prefixes of their names.
constexpr std::string_view kConfigurations[] = {"experiments/", "recipes/"};

std::vector<Preset> presets_in(const fs::path& folder, std::string_view beginning) {
  std::vector<Preset> presets;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() != ".yaml" || !entry.is_regular_file(code)) continue;
    const std::string name = entry.path().stem().string();
    presets.push_back(
        {.name = std::string(beginning) + name, .file = entry.path(), .is_experiment = !beginning.empty()});
  }
  std::sort(presets.begin(), presets.end(), [](const Preset& a, const Preset& b) { return a.name < b.name; });
  return presets;
}

// "models/llama.yaml" is "llama".
std::string plain_name(std::string text) {
  if (text.ends_with(".yaml")) text.resize(text.size() - 5);
  if (text.starts_with("models/")) text.erase(0, 7);
  return text;
}

// First preset with this name under `same`; a configuration's folder may be omitted.
template <typename Same>
std::optional<fs::path> first_named(const std::vector<Preset>& presets, const std::string& name, const Same& same) {
  for (const Preset& preset : presets) {
    if (same(preset.name, name)) return preset.file;
  }
  for (const Preset& preset : presets) {
    if (preset.is_experiment && same(preset.name.substr(preset.name.find('/') + 1), name)) return preset.file;
  }
  return std::nullopt;
}

}  // namespace

std::string about(const Preset& preset) {
  const std::string text = read_file(preset.file);
  std::string joined;
  for (size_t at = 0; at < text.size() && text[at] == '#';) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trim(std::string_view(text).substr(at + 1, end - at - 1));
    if (line.empty()) break;
    if (!joined.empty()) joined += ' ';
    joined += line;
    at = end + 1;
  }
  return joined;
}

std::vector<Preset> list_presets(const fs::path& config_root) {
  if (config_root.empty()) return {};
  std::vector<Preset> presets = presets_in(config_root / "models", "");
  for (const std::string_view beginning : kConfigurations) {
    const std::vector<Preset> more = presets_in(config_root / beginning, beginning);
    presets.insert(presets.end(), more.begin(), more.end());
  }
  return presets;
}

fs::path find_config(const std::string& text, const fs::path& config_root) {
  std::error_code code;
  // A folder of that name does not hide a preset.
  if (fs::exists(text, code) && !fs::is_directory(text, code)) return text;
  const std::vector<Preset> presets = list_presets(config_root);
  const std::string name = plain_name(text);
  if (const auto file = first_named(presets, name, [](const auto& a, const auto& b) { return a == b; })) return *file;
  const auto is_like = [](const auto& a, const auto& b) {
    return lower_case(fold_name(a)) == lower_case(fold_name(b));
  };
  if (const auto file = first_named(presets, name, is_like)) return *file;
  // A path; its reader reports what is wrong.
  if (fs::is_directory(text, code)) return text;
  std::vector<std::string> names;
  for (const Preset& preset : presets) names.push_back(preset.name);
  const std::string nearest = nearest_word(name, names);
  throw UserError(
      fmt::format("--config {}: no such file, and no preset has that name{}", text,
                  nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
      presets.empty() ? "check the path" : "check the path; 'megalith presets' lists what came with the program");
}

}  // namespace megalith

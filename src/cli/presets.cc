// megalith presets: the models and recipes shipped with the program.
#include "config/presets.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <tuple>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/print.h"
#include "comm/groups.h"
#include "config/yaml_config.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "models/families.h"

namespace megalith {
namespace {

constexpr size_t kNameColumn = 28, kCountColumn = 11, kAboutColumns = 66;

struct PresetsOptions {
  bool json = false;

  void visit(OptionVisitor& v) {
    v.group("Presets");
    v.field("json", json, "Print a JSON list: name, file, parameters, about.");
  }
};

// Built on the meta device, which allocates nothing.
int64_t count_parameters(const Preset& preset, const ConfigInputs& inputs) {
  ModelConfig model;
  const OptionSet options(model);
  const ConfigFile file = read_config_file(preset.file, inputs.config_root, inputs.environment);
  throw_if_any(file.errors);
  for (const Setting& setting : file.settings) {
    // A recipe sets more than the model.
    if (Option* option = options.find(setting.name)) option->offer(setting.value, setting.source);
  }
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups};
  context.device = at::kMeta;
  return family_for(model).build_whole(model, context)->num_parameters();
}

// Sort key: sizes of one model are listed together, smallest first: "llama3.1" of llama3.1_8B.
std::string series(const std::string& name) { return name.substr(0, name.rfind('_')); }

// A comment without its parameter count, which has its own column.
std::string about_model(const Preset& preset) {
  static const std::regex count("[:,]? ?[0-9][0-9,]{6,} parameters.*");
  return std::regex_replace(about(preset), count, "");
}

std::string shortened(const std::string& text, size_t width) {
  const std::vector<std::string> lines = wrap(text, width);
  return lines.size() > 1 ? lines.front() + " …" : text;
}

void print_table(const std::vector<std::pair<Preset, int64_t>>& presets) {
  print_out("{:<{}}{:>{}}\n", "name", kNameColumn, "parameters", kCountColumn);
  for (const auto& [preset, count] : presets) {
    print_out("{:<{}}{:>{}}  {}\n", preset.name, kNameColumn, format_count(static_cast<double>(count)), kCountColumn,
               shortened(about_model(preset), kAboutColumns));
  }
}

void print_json(const std::vector<std::pair<Preset, int64_t>>& presets) {
  Json list = Json::array();
  for (const auto& [preset, count] : presets) {
    list.push_back(
        {{"name", preset.name}, {"file", preset.file.string()}, {"parameters", count}, {"about", about(preset)}});
  }
  print_out("{}\n", dump_json(list));
}

}  // namespace

int run_presets(CommandContext& context) {
  PresetsOptions options;
  OptionSet set(options);
  const auto words = context.read_words(
      set,
      "usage: megalith presets [WORD ...]\n\n"
      "Lists the models and recipes that came with the program, or those whose names have all the words. Each name\n"
      "can be given as --config NAME; 'megalith init NAME' writes a recipe to start from.");
  if (!words) return kExitSuccess;
  std::vector<Preset> presets = list_presets(context.config_root);
  if (presets.empty()) {
    throw UserError(fmt::format("no presets are in {}", context.config_root.string()),
                    "set MEGALITH_CONFIGS to the folder configs/ that came with the program");
  }
  std::erase_if(presets, [&](const Preset& preset) {
    return !std::all_of(words->begin(), words->end(), [&](const std::string& word) {
      return lower_case(preset.name).find(lower_case(word)) != std::string::npos;
    });
  });
  if (presets.empty()) {
    throw UserError(fmt::format("no preset has '{}' in its name", join(*words, "' and '")),
                    "'megalith presets' lists all");
  }
  std::vector<std::pair<Preset, int64_t>> counted;
  for (const Preset& preset : presets) counted.emplace_back(preset, count_parameters(preset, context.config_inputs()));
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.first.is_experiment, series(a.first.name), a.second) <
           std::tuple(b.first.is_experiment, series(b.first.name), b.second);
  });
  options.json ? print_json(counted) : print_table(counted);
  return kExitSuccess;
}

std::vector<CommandOptions> presets_options() { return {options_of<PresetsOptions>("presets")}; }

}  // namespace megalith

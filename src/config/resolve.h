// Applies command line, files and environment to options, reporting all errors together.
//
// Layers, lowest first: defaults < model (a checkpoint's or HF folder's own values) < presets < configuration file <
// environment (MEGALITH_…) < command line. Values are offered with their layer (Option::offer), so order does not
// matter: read the options, open the model folder they name, then apply_values() with OptionLayer::kModel fills in what
// is unset. The last of several configuration files wins.
//
//   TrainOptions options;
//   OptionSet set(options);
//   Resolution resolution = resolve(set, {.arguments = arguments, .config_root = root, .environment = snapshot});
//   if (options.load_hf) apply_values(set, hf_values(*options.load_hf), {OptionLayer::kModel, "config.json"});
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/known_names.h"
#include "config/option.h"
#include "config/setting.h"
#include "config/yaml_document.h"
#include "core/error.h"

namespace megalith {

struct ConfigFile;

// Reads another program's configuration file; contract as read_config_file() (config/yaml_config.h).
using ConfigFileReader = std::function<ConfigFile(const std::filesystem::path& file,
                                                  const std::filesystem::path& config_root, const EnvironmentMap&)>;

struct ConfigInputs {
  std::vector<std::string> arguments;                // without program and subcommand
  std::optional<std::filesystem::path> config_file;  // used without --config
  std::filesystem::path config_root;                 // has models/, experiments/ and modules/; may be empty
  EnvironmentMap environment;
  bool allow_positional = false;                         // false: words of no option are errors
  OtherCommands others;                                  // errors for their options name the command
  std::map<std::string, ConfigFileReader> readers = {};  // by file extension, ".toml"; other files are YAML
};

struct Resolution {
  std::optional<std::filesystem::path> config_file;  // the last of several
  std::vector<std::string> positional;
  std::map<std::string, std::string> exports;  // the experiment's `env`, for the process environment
  std::map<std::string, std::string> header;   // the experiment's work_group, user_name, exp_name, workspace
  std::vector<std::string> notes;              // one line each, for the start-up report
  bool wants_help = false;                     // --help was given: ignore errors
  std::vector<UserError> errors;
};

// Reads and applies every layer; returns `errors`, so the caller can add cross-option rules.
Resolution try_resolve(OptionSet& options, const ConfigInputs& inputs);

// As try_resolve, but throws UserErrors (unless help is asked for).
Resolution resolve(OptionSet& options, const ConfigInputs& inputs);

// Offers values by name; each wins unless a higher layer set the option. UserErrors: an unreadable value.
// InternalError: no such option.
void apply_values(OptionSet& options, const std::map<std::string, std::string>& values, const OptionSource& source);

void throw_if_any(const std::vector<UserError>& errors);

}  // namespace megalith

// From a command line, files and the environment to options with values: every layer applied, everything wrong
// reported together.
//
// Layers, lowest first: defaults < model (a checkpoint's or HF folder's own values) < presets < configuration file <
// environment (MEGALITH_…) < command line. Each value is offered with its layer (Option::offer), so the order in which
// layers become known does not matter: read the options first, open the model folder they name, then apply_values()
// with OptionLayer::kModel fills in what nobody set.
//
// Several configuration files are one layer each upon the other: what two of them set is as the last one says.
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

// Reads a configuration file as read_config_file() does (config/yaml_config.h), in another program's form.
using ConfigFileReader = std::function<ConfigFile(const std::filesystem::path& file,
                                                  const std::filesystem::path& config_root, const EnvironmentMap&)>;

struct ConfigInputs {
  std::vector<std::string> arguments;                // without program and subcommand
  std::optional<std::filesystem::path> config_file;  // used when the arguments have no --config
  std::filesystem::path config_root;                 // holds models/, experiments/ and modules/; may be empty
  EnvironmentMap environment;
  bool allow_positional = false;  // false: a word that belongs to no option is an error
  OtherCommands others;           // the error for one of their options names the command that has it
  std::map<std::string, ConfigFileReader> readers = {};  // by a file's ending, ".toml"; all other files are YAML
};

struct Resolution {
  std::optional<std::filesystem::path> config_file;  // the last of several
  std::vector<std::string> positional;
  std::map<std::string, std::string> exports;  // the experiment's `env`, for the process environment
  std::map<std::string, std::string> header;   // work_group, user_name, exp_name, workspace as the experiment has them
  std::vector<std::string> notes;              // one line each, for the start-up report
  bool wants_help = false;                     // --help was given; the caller then ignores errors
  std::vector<UserError> errors;
};

// Reads and applies every layer; what is wrong is in `errors`, so that the caller can add its cross-option rules.
Resolution try_resolve(OptionSet& options, const ConfigInputs& inputs);

// As try_resolve, but throws UserErrors when anything is wrong (and help is not asked for).
Resolution resolve(OptionSet& options, const ConfigInputs& inputs);

// Offers values to options by name; each wins unless a higher layer has set the option.
// Throws UserErrors: a value that cannot be read. InternalError: a name that is no option.
void apply_values(OptionSet& options, const std::map<std::string, std::string>& values, const OptionSource& source);

// Throws UserErrors unless there are none.
void throw_if_any(const std::vector<UserError>& errors);

}  // namespace megalith

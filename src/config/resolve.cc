// Applying the layers; see resolve.h.
#include "config/resolve.h"

#include <fmt/format.h>

#include "config/command_line.h"
#include "config/environment.h"
#include "config/presets.h"
#include "config/yaml_config.h"

namespace megalith {
namespace {

template <typename T>
void append(std::vector<T>& into, const std::vector<T>& from) {
  into.insert(into.end(), from.begin(), from.end());
}

WrittenValue negated(const Setting& setting) {
  if (setting.value.form == WrittenValue::Form::kNull) return setting.value;
  const std::optional<bool> value = parse_bool(setting.value.text());
  if (!value) {
    throw UserError(fmt::format("{} is '{}', but takes: true or false", named_at(setting), setting.value.text()),
                    "a name that starts with 'no' switches off");
  }
  return WrittenValue::of(*value ? "false" : "true");
}

void apply_known(const Setting& setting, const NameMatch& match, const WrittenValue& value, NoEffectNotes& notes) {
  const KnownName& known = *match.known;
  if (known.kind == KnownName::Kind::kNoEffect) return notes.add(match.name, known.text);
  if (is_neutral(known, value)) return;
  const std::string asked = fmt::format("{} {}", named_at(setting), setting.value.text());
  if (known.kind == KnownName::Kind::kRemoved) throw UserError(asked + " is not an option any more", known.text);
  const std::string neutral = known.neutral.empty() ? "null" : known.neutral.front();
  throw UserError(fmt::format("{}: this build does not support {}", asked, known.text),
                  fmt::format("remove it, or set {} to {}", match.name, neutral));
}

void apply_setting(OptionSet& options, const Setting& setting, const OtherCommands& others, NoEffectNotes& notes) {
  const NameMatch match = look_up(options, setting.name);
  if (!match) throw unknown_name(options, setting, others);
  const WrittenValue value = match.is_negated ? negated(setting) : setting.value;
  if (match.option) {
    match.option->offer(value, setting.source);
  } else {
    apply_known(setting, match, value, notes);
  }
}

void apply_settings(OptionSet& options, const std::vector<Setting>& settings, const OtherCommands& others,
                    NoEffectNotes& notes, std::vector<UserError>& errors) {
  for (const Setting& setting : settings) {
    try {
      apply_setting(options, setting, others, notes);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
}

// Header keys that are options set them; the caller gets the others in Resolution::header.
void apply_header(OptionSet& options, const std::vector<Setting>& header, NoEffectNotes& notes, Resolution& result) {
  for (const Setting& setting : header) {
    if (setting.value.form != WrittenValue::Form::kNull) result.header[setting.name] = setting.value.text();
    if (options.find(setting.name)) apply_settings(options, {setting}, {}, notes, result.errors);
  }
}

}  // namespace

Resolution try_resolve(OptionSet& options, const ConfigInputs& inputs) {
  Resolution result;
  CommandLine command_line = read_command_line(inputs.arguments, options, inputs.others);
  EnvironmentSettings environment = read_environment(inputs.environment, options, inputs.others);
  result.wants_help = command_line.wants_help;
  result.config_file = inputs.config_file;
  if (command_line.config_file) result.config_file = *command_line.config_file;

  NoEffectNotes no_effect;
  if (result.config_file) {
    try {
      result.config_file = find_config(result.config_file->string(), inputs.config_root);
    } catch (const UserError& error) {
      result.errors.push_back(error);
      result.config_file.reset();
    }
  }
  if (result.config_file) {
    ConfigFile file = read_config_file(*result.config_file, inputs.config_root, inputs.environment);
    append(result.errors, file.errors);
    append(result.notes, file.notes);
    result.exports = std::move(file.exports);
    apply_header(options, file.header, no_effect, result);
    apply_settings(options, file.settings, inputs.others, no_effect, result.errors);
  }
  apply_settings(options, environment.settings, inputs.others, no_effect, result.errors);
  append(result.errors, command_line.errors);
  apply_settings(options, command_line.settings, inputs.others, no_effect, result.errors);

  result.positional = std::move(command_line.positional);
  if (!inputs.allow_positional) {
    for (const std::string& word : result.positional) {
      result.errors.emplace_back(fmt::format("unexpected argument '{}'", word),
                                 "options are written --NAME VALUE, --NAME=VALUE or NAME=VALUE");
    }
  }
  append(result.notes, no_effect.lines());
  append(result.notes, environment.notes);
  return result;
}

Resolution resolve(OptionSet& options, const ConfigInputs& inputs) {
  Resolution result = try_resolve(options, inputs);
  if (!result.wants_help) throw_if_any(result.errors);
  return result;
}

void apply_values(OptionSet& options, const std::map<std::string, std::string>& values, const OptionSource& source) {
  std::vector<UserError> errors;
  for (const auto& [name, value] : values) {
    Option* option = options.find(name);
    MEGALITH_CHECK(option, "{} sets '{}', which is no option", source.where, name);
    try {
      option->offer(WrittenValue::of(value), source);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  throw_if_any(errors);
}

void throw_if_any(const std::vector<UserError>& errors) {
  if (!errors.empty()) throw UserErrors(errors);
}

}  // namespace megalith

#include "config/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/command_line.h"
#include "config/dependent_names.h"
#include "config/dialect.h"
#include "config/environment.h"
#include "config/presets.h"
#include "config/secret_names.h"
#include "config/yaml_config.h"
#include "core/strings.h"

namespace megalith {
namespace {

template <typename T>
void append(std::vector<T>& into, const std::vector<T>& from) {
  into.insert(into.end(), from.begin(), from.end());
}

bool is_null(const WrittenValue& value) {
  return value.form == WrittenValue::Form::kNull ||
         (value.form == WrittenValue::Form::kText && lower_case(trim(value.text())) == "null");
}

WrittenValue negated(const Setting& setting) {
  if (is_null(setting.value)) return WrittenValue::null();
  const std::optional<bool> value = parse_bool(setting.value.text());
  if (!value) {
    throw UserError(fmt::format("{} is '{}', but takes: true or false", named_at(setting), setting.value.text()),
                    "a name that starts with 'no' switches off");
  }
  return WrittenValue::of(*value ? "false" : "true");
}

// Notes about names that are not spelled as ours, each made once.
struct NameNotes {
  NoEffectNotes no_effect;
  std::vector<std::string> read_as;          // "learning_rate is lr"
  std::optional<Setting> no_positions = {};  // the setting that asks for a model without learned positions
  // Decided when all options are known, by config/dependent_names.h; the last word of each name counts.
  std::map<std::string, std::pair<bool, Setting>, std::less<>> gates = {};  // false: takes its options back
  std::map<std::string, Setting, std::less<>> implying = {};                // words that imply more than their option
  std::map<std::string, Setting, std::less<>> waiting = {};                 // refused unless an option makes them idle
  // The word that gave an option its present value.
  std::map<std::string, const OtherWord*, std::less<>> said_by = {};

  void add_word(const Setting& setting, const Option& option) {
    add_read_as(fmt::format("{} is {}", setting.name, option.name()));
  }
  void add_read_as(std::string line) {
    if (std::find(read_as.begin(), read_as.end(), line) == read_as.end()) read_as.push_back(std::move(line));
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    if (!read_as.empty()) all.push_back(fmt::format("other programs' words: {}", join(read_as, ", ")));
    append(all, no_effect.lines());
    return all;
  }
};

void close_gates(OptionSet& options, const NameNotes& notes, std::vector<std::string>& lines) {
  for (const auto& [gate, name] : gated_options()) {
    const auto found = notes.gates.find(gate);
    Option* option = options.find(name);
    if (found == notes.gates.end() || found->second.first || !option || option->is_default()) continue;
    const Setting& setting = found->second.second;
    lines.push_back(fmt::format("{} is false, which takes {} {} back", named_at(setting), name, option->text()));
    option->reset(setting.source);
  }
}

void apply_implied(OptionSet& options, const NameNotes& notes) {
  for (const auto& [word, name, value] : implied_values()) {
    const auto found = notes.implying.find(word);
    Option* option = found == notes.implying.end() ? nullptr : options.find(name);
    if (option && option->is_default()) option->assign(WrittenValue::of(std::string(value)), found->second.source);
  }
}

// This setting of a known name asks for something that is not done here.
UserError not_supported(const std::string& name, const KnownName& known, const Setting& setting) {
  const std::string neutral = known.neutral.empty() ? "null" : known.neutral.front();
  return UserError(
      fmt::format("{} {}: this build does not support {}", named_at(setting), setting.value.text(), known.text),
      fmt::format("remove it, or set {} to {}", name, neutral));
}

// Why these options make the name idle; nothing if they do not.
std::optional<std::string_view> why_idle(const OptionSet& options, std::string_view name) {
  for (const IdleName& row : idle_names()) {
    if (row.name != name) continue;
    const Option* option = options.find(row.option);
    const std::vector<std::string> values = split_entry(fmt::format("x={}", row.values)).second;
    if (!option || std::find(values.begin(), values.end(), option->text()) != values.end()) return row.reason;
  }
  return std::nullopt;
}

void settle_waiting(const OptionSet& options, NameNotes& notes, std::vector<UserError>& errors) {
  for (const auto& [name, setting] : notes.waiting) {
    if (const auto reason = why_idle(options, name)) {
      notes.no_effect.add(name, *reason);
    } else {
      errors.push_back(not_supported(name, *find_known_name(name), setting));
    }
  }
}

// True if the option was written by its own name, not by an alias, an opposite or another program's word.
bool is_own_name(const Setting& setting, const Option& option) {
  const std::string name = fold_name(setting.name);
  return name == option.name() || name.ends_with("." + option.name()) ||
         std::equal(name.begin(), name.end(), option.name().begin(), option.name().end(),
                    [](char a, char b) { return a == b || (a == '.' && b == '_'); });
}

void apply_known(const Setting& setting, const NameMatch& match, const WrittenValue& value, NameNotes& notes) {
  const KnownName& known = *match.known;
  if (known.kind == KnownName::Kind::kNoEffect) {
    const bool is_about_positions = match.name == "position_embedding" || match.name == "add_position_embedding";
    const bool asks_for_none = is_about_positions && parse_bool(value.text()) == false;
    if (is_about_positions) notes.no_positions = asks_for_none ? std::optional(setting) : std::nullopt;
    if (is_gate(match.name)) notes.gates[match.name] = {parse_bool(value.text()).value_or(true), setting};
    return notes.no_effect.add(match.name, known.text);
  }
  notes.waiting.erase(match.name);
  if (is_neutral(known, value)) return;
  if (known.kind == KnownName::Kind::kRemoved) {
    throw UserError(fmt::format("{} {} is not an option here", named_at(setting), setting.value.text()), known.text);
  }
  if (!may_be_idle(match.name)) throw not_supported(match.name, known, setting);
  notes.waiting.emplace(match.name, setting);
}

// A word, or a value, that means values of options.
void apply_word(OptionSet& options, const OtherWord& word, const Setting& setting, NameNotes& notes) {
  for (const SaidOption& said : word.becomes) {
    Option* option = options.find(said.option);
    if (!option) continue;  // another command's
    try {
      const bool has_won = option->offer(WrittenValue::of(said_value(said, setting.value.text())), setting.source);
      if (has_won) notes.said_by[option->name()] = &word;
    } catch (const UserError& error) {
      throw UserError(fmt::format("{} {}: {}", named_at(setting), setting.value.text(), error.message()),
                      error.remedy());
    }
    const std::string note = word.note.empty() ? "" : fmt::format(" ({})", word.note);
    notes.add_read_as(
        fmt::format("{} {} is {} {}{}", setting.name, setting.value.text(), said.option, option->text(), note));
  }
}

// A word that asks for nothing takes back what the same word said before, unless the option was set since.
void take_back(OptionSet& options, const OtherWord& word, const Setting& setting, NameNotes& notes) {
  for (const SaidOption& said : word.becomes) {
    Option* option = options.find(said.option);
    const auto found = option ? notes.said_by.find(option->name()) : notes.said_by.end();
    if (found == notes.said_by.end() || found->second != &word) continue;
    if (setting.source.layer < option->source().layer) continue;
    notes.add_read_as(
        fmt::format("{} {} takes {} {} back", setting.name, setting.value.text(), said.option, option->text()));
    option->reset(setting.source);
    notes.said_by.erase(found);
  }
}

void apply_setting(OptionSet& options, const Setting& setting, const OtherCommands& others, NameNotes& notes) {
  const NameMatch match = look_up(options, setting.name);
  if (!match) throw unknown_name(options, setting, others);
  const WrittenValue value = match.is_negated ? negated(setting) : setting.value;
  const OtherWord* word_of_value = find_other_value(match.name, value.text());
  if (match.known) {
    if (word_of_value) return apply_word(options, *word_of_value, setting, notes);
    // Another command's own option is no other program's name: --warmup of bench.
    const bool is_written_here = setting.source.layer == OptionLayer::kCommandLine;
    if (match.known->kind == KnownName::Kind::kRemoved && is_written_here) {
      const std::vector<std::string> owners = others.owners(setting.name);
      if (!owners.empty()) throw useless_name(setting, owners, others.here);
    }
    return apply_known(setting, match, value, notes);
  }
  if (others.acts && setting.source.layer == OptionLayer::kCommandLine && !others.acts(*match.option)) {
    throw useless_name(setting, others.owners(match.option->name()), others.here);
  }
  // Presets list every name that an option ever had: a null after one of the others does not touch the option.
  if (is_null(value) && !is_own_name(setting, *match.option)) return;
  if (word_of_value) return apply_word(options, *word_of_value, setting, notes);
  if (match.word) {
    if (is_neutral(match.word->neutral, value)) return take_back(options, *match.word, setting, notes);
    if (match.word->is_switch() && !is_null(value) && !parse_bool(value.text())) {
      throw UserError(fmt::format("{} {} is neither true nor false", named_at(setting), value.text()),
                      fmt::format("it is {}'s word for {}", match.word->program, match.word->option));
    }
    if (!match.word->becomes.empty()) return apply_word(options, *match.word, setting, notes);
    notes.add_word(setting, *match.option);
    if (const std::string word = fold_name(setting.name); implies_values(word))
      notes.implying.insert_or_assign(word, setting);
  }
  if (match.option->offer(value, setting.source)) notes.said_by.erase(match.option->name());
}

void apply_settings(OptionSet& options, const std::vector<Setting>& settings, const OtherCommands& others,
                    NameNotes& notes, std::vector<UserError>& errors) {
  for (const Setting& setting : settings) {
    try {
      apply_setting(options, setting, others, notes);
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
}

// As in Megatron-LM, no_position_embedding belongs to rotary positions; with learned ones it would change the model. A
// folder to load from tells which it has.
void check_positions(const OptionSet& options, const NameNotes& notes, std::vector<UserError>& errors) {
  const auto is = [&](const char* name, const char* value) {
    const Option* option = options.find(name);
    return option != nullptr && option->text() == value;
  };
  if (!notes.no_positions || !is("position_embedding_type", "learned_absolute")) return;
  if (is("use_rotary_position_embeddings", "true") || !is("load", "null") || !is("load_hf", "null")) return;
  errors.emplace_back(fmt::format("{} asks for a model without learned positions, and position_embedding_type is "
                                  "learned_absolute",
                                  named_at(*notes.no_positions)),
                      "set position_embedding_type to rope or none");
}

// A word of no option, most often one without its dashes.
UserError stray_word(const OptionSet& options, const std::string& word, const OtherCommands& others) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string message = fmt::format("unexpected argument '{}'", word);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
  if (is_name && look_up(options, name)) {
    return UserError(message, fmt::format("options start with two dashes: --{}", word));
  }
  if (is_name && equals != std::string::npos) {
    return unknown_name(options, {name, {}, {OptionLayer::kCommandLine, "command line"}}, others);
  }
  return UserError(message, "options are written --NAME VALUE, --NAME=VALUE or NAME=VALUE");
}

// Options are written down, and messages quote them: takes out those with the value of a variable that is a secret by
// its name. Short values may be ordinary words, and HF_TOKEN_PATH is no secret.
void refuse_secrets(std::vector<Setting>& settings, const EnvironmentMap& environment, std::vector<UserError>& errors) {
  constexpr size_t kShortest = 16;
  for (const auto& [variable, secret] : environment) {
    const auto ends = [&name = variable](std::string_view end) { return name.ends_with(end); };
    if (secret.size() < kShortest || ends("_PATH") || ends("_FILE") || !is_name_of_secret(variable)) continue;
    std::erase_if(settings, [&, &name = variable, &value = secret](const Setting& setting) {
      const auto holds = [&](const std::string& text) { return text.find(value) != std::string::npos; };
      if (std::ranges::none_of(setting.value.items, holds)) return false;
      errors.emplace_back(
          fmt::format("{} has the value of the variable {}, which by its name is a secret: the values of options are "
                      "written down in config.yaml, run.json, the page and checkpoints",
                      named_at(setting), name),
          "leave it out: the program reads HF_TOKEN from the environment where it needs it");
      return true;
    });
  }
}

// Header keys that are options set them; Resolution::header has the rest.
void apply_header(OptionSet& options, const std::vector<Setting>& header, NameNotes& notes, Resolution& result) {
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
  if (command_line.config_files.empty() && inputs.config_file) {
    command_line.config_files.push_back(inputs.config_file->string());
  }

  NameNotes names;
  for (const std::string& name : command_line.config_files) {
    result.config_file.reset();
    try {
      result.config_file = find_config(name, inputs.config_root);
    } catch (const UserError& error) {
      result.errors.push_back(error);
      continue;
    }
    const auto reader = inputs.readers.find(result.config_file->extension().string());
    const ConfigFileReader read = reader == inputs.readers.end() ? read_config_file : reader->second;
    ConfigFile file = read(*result.config_file, inputs.config_root, inputs.environment);
    append(result.errors, file.errors);
    append(result.notes, file.notes);
    refuse_secrets(file.header, inputs.environment, result.errors);
    refuse_secrets(file.settings, inputs.environment, result.errors);
    for (auto& [variable, value] : file.exports) result.exports.insert_or_assign(variable, std::move(value));
    apply_header(options, file.header, names, result);
    apply_settings(options, file.settings, inputs.others, names, result.errors);
  }
  refuse_secrets(environment.settings, inputs.environment, result.errors);
  refuse_secrets(command_line.settings, inputs.environment, result.errors);
  apply_settings(options, environment.settings, inputs.others, names, result.errors);
  append(result.errors, command_line.errors);
  apply_settings(options, command_line.settings, inputs.others, names, result.errors);

  result.positional = std::move(command_line.positional);
  if (!inputs.allow_positional) {
    for (const std::string& word : result.positional) {
      result.errors.push_back(stray_word(options, word, inputs.others));
    }
  }
  apply_implied(options, names);
  close_gates(options, names, result.notes);
  settle_waiting(options, names, result.errors);
  check_positions(options, names, result.errors);
  append(result.notes, names.lines());
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

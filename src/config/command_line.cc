#include "config/command_line.h"

#include <fmt/format.h>

#include "config/option_value.h"
#include "core/strings.h"

namespace megalith {
namespace {

const OptionSource kSource{OptionLayer::kCommandLine, "command line"};

bool starts_option(const std::string& word) { return word.starts_with("--"); }

bool is_config_name(std::string_view name) { return name == "config" || name == "exp"; }

class ArgumentReader {
 public:
  ArgumentReader(const std::vector<std::string>& words, const OptionSet& options, const OtherCommands& others)
      : words_(words), options_(options), others_(others) {}

  CommandLine read() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_++];
      if (word == "--") {
        while (next_ < words_.size()) result_.positional.push_back(words_[next_++]);
      } else if (starts_option(word)) {
        read_option(word.substr(2));
      } else if (word == "-h") {
        result_.wants_help = true;
      } else if (is_assignment(word)) {
        read_option(word);
      } else if (word.size() > 1 && word[0] == '-' && !parse_number(word)) {
        result_.errors.emplace_back(fmt::format("unknown argument '{}'", word), "options start with two dashes");
      } else {
        result_.positional.push_back(word);
      }
    }
    return std::move(result_);
  }

 private:
  // `text` is NAME or NAME=VALUE.
  void read_option(const std::string& text) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    std::optional<std::string> attached;
    if (equals != std::string::npos) attached = text.substr(equals + 1);

    const NameMatch match = look_up(options_, name);
    if (!match && name == "help") {
      result_.wants_help = true;
    } else if (!match && is_config_name(name)) {
      const auto file = attached ? attached : take_value(name, "a configuration file");
      if (file) result_.config_files.push_back(*file);
    } else if (!match) {
      result_.errors.push_back(unknown_name(options_, {name, {}, kSource}, others_));
      if (!attached) take_list();
    } else {
      read_value(name, match, attached);
    }
  }

  void read_value(const std::string& name, const NameMatch& match, const std::optional<std::string>& attached) {
    // A word for several options' values takes its own.
    const bool has_own = match.word && !match.word->becomes.empty();
    const bool is_switch = has_own        ? match.word->is_switch()
                           : match.option ? match.option->is_switch()
                                          : match.known->is_switch;
    std::optional<WrittenValue> value;
    if (attached) {
      value = WrittenValue::of(*attached);
    } else if (is_switch) {
      // Primus's presets write null for a switch that is not set, and people copy that to the command line.
      const bool has_word = next_ < words_.size() && (parse_bool(words_[next_]) || words_[next_] == "null");
      value = WrittenValue::of(has_word ? words_[next_++] : "true");
    } else if (has_own || (match.option && !match.option->is_list())) {
      const std::optional<std::string> word = take_value(name, has_own ? "a value" : match.option->type_text());
      if (word) value = WrittenValue::of(*word);
    } else {
      std::vector<std::string> items = take_list();
      if (match.option && items.empty()) {
        take_value(name, match.option->type_text());  // reports what is missing
      } else if (items.empty()) {
        value = WrittenValue::of("true");
      } else if (items.size() == 1) {  // a whole list in one word: "99,1,0"
        value = WrittenValue::of(items[0]);
      } else {
        value = WrittenValue{WrittenValue::Form::kList, std::move(items)};
      }
    }
    if (!value) return;
    if (match.option && is_config_name(match.option->name())) result_.config_files = {value->text()};
    result_.settings.push_back({name, std::move(*value), kSource});
  }

  std::optional<std::string> take_value(const std::string& name, const std::string& expected) {
    if (next_ < words_.size() && !starts_option(words_[next_])) return words_[next_++];
    result_.errors.emplace_back(
        fmt::format("--{} needs a value ({}), but {}", name, expected,
                    next_ < words_.size() ? fmt::format("'{}' follows", words_[next_]) : "nothing follows"),
        fmt::format("write --{} VALUE; a value that starts with two dashes is written --{}=VALUE", name, name));
    return std::nullopt;
  }

  std::vector<std::string> take_list() {
    std::vector<std::string> items;
    while (next_ < words_.size() && !starts_option(words_[next_]) && !is_assignment(words_[next_])) {
      items.push_back(words_[next_++]);
    }
    return items;
  }

  // Primus's bare key=value, for known names.
  bool is_assignment(const std::string& word) const {
    const size_t equals = word.find('=');
    return equals != std::string::npos && equals > 0 && word[0] != '-' && look_up(options_, word.substr(0, equals));
  }

  const std::vector<std::string>& words_;
  const OptionSet& options_;
  const OtherCommands& others_;
  size_t next_ = 0;
  CommandLine result_;
};

}  // namespace

CommandLine read_command_line(const std::vector<std::string>& arguments, const OptionSet& options,
                              const OtherCommands& others) {
  return ArgumentReader(arguments, options, others).read();
}

}  // namespace megalith

// A file of another trainer: its keys flattened ("optimizer.lr"), each with its location, and the configuration that
// rules (word_rules.h) and code make of them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compat/file_keys.h"
#include "compat/word_rules.h"
#include "config/yaml_config.h"
#include "config/yaml_document.h"

namespace megalith {

struct FileWord {
  WrittenValue written;
  std::string where;  // "llama3_8b.toml:31", "command line"
  std::string key;    // as written: perhaps an alias
};

// A trainer's name and syntax, for messages.
struct FileTrainer {
  std::string_view name;                    // "torchtitan"
  std::string_view assigns, takes;          // " = ", "it takes"
  std::string_view switch_values;           // "true or false"
  // An unknown key, {key}, and what to do about it; "": such keys are read as options (config/resolve.h).
  std::string_view unknown, unknown_remedy;
  std::string_view refused_remedy;         // of a key that is refused; {key}, {unset}: its default
  bool has_null = false;                   // a null key counts as not written
  std::string_view component_remedy = "";  // for a refused …._component_
};

class FileWords : public RuleWords {
 public:
  FileWords(const FileKeys& keys, const FileTrainer& trainer, std::filesystem::path config_root,
            const EnvironmentMap& environment)
      : keys_(keys), environment_(environment), trainer_(trainer), root_(std::move(config_root)) {}

  // Null if not in the file; the value may be null.
  const FileWord* find(std::string_view name) const;
  const std::map<std::string, FileWord, std::less<>>& all() const { return words_; }
  // The value as written: for a component with its modules, which text() omits.
  std::string written_text(std::string_view name) const;
  std::vector<std::string> items(std::string_view name) const override;
  bool is_written(std::string_view name) const override;
  std::string said(std::string_view name) const override;
  [[noreturn]] void refuse(std::string_view word, std::string_view expected, std::string remedy = "") const override;

  // The option `preset` takes all settings of a preset.
  void set(std::string_view word, std::string option, std::string value) override;
  void set(std::string_view word, std::string option, WrittenValue value);
  void note(std::string text) override { result.notes.push_back(std::move(text)); }
  void fail(std::string message, std::string remedy) override {
    result.errors.emplace_back(std::move(message), std::move(remedy));
  }

  // Adds a key, or the one that it is an alias of; that one wins if both are written.
  void add(const std::string& name, FileWord word);
  // Adds a key, or all keys below it.
  void flatten(const std::string& name, const YamlNode& node);
  // Errors for unknown and refused keys that begin so.
  void check_keys(std::string_view beginning = "");
  // Calls each in turn, collecting what they throw as errors of the file.
  void apply_all(const std::vector<std::function<void()>>& rules);
  // Sets the keys that map to one option, and passes on unknown ones.
  void take_options();
  // Notes the keys without effect; `is_shown` may leave some out.
  void name_useless_keys(const std::string& file, const std::function<bool(const std::string& name)>& is_shown);

  ConfigFile result;

 protected:
  std::optional<std::string> value_of(std::string_view word) const override;
  std::string_view switch_values() const override { return trainer_.switch_values; }
  virtual void take_preset(const std::string& name);
  // A list of maps below a key: refused.
  virtual void take_list(const std::string& name, const YamlNode& node);
  ConfigFile read_preset(const std::string& name) const;

  const FileKeys& keys_;
  const EnvironmentMap& environment_;
  std::map<std::string, FileWord, std::less<>> words_;

 private:
  const FileTrainer& trainer_;
  const std::filesystem::path root_;
};

}  // namespace megalith

// The keys of other trainers' files (torchtitan's jobs, torchtune's recipes, YAML of axolotl, LLaMA-Factory and TRL):
// each key's default, and its meaning here. The rows are config/dialects/{torchtitan,torchtune,…}.table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class FileKeyKind {
  kOption,    // one option of ours: `text`
  kAlias,     // an older name of the key `text`; that key wins if both are written
  kRule,      // read by a row of torchtitan_rules.table, torchtune_rules.table …, or by the code next to them
  kNoEffect,  // ignored, with a note
  kRefused,   // an error unless it has its default value: `text` says what it asks for
};

struct FileKey {
  std::string name;  // "training.steps"; ".*" at its end: all keys below
  FileKeyKind kind;
  std::string fallback;  // the other trainer's default
  std::string text;
};

class FileKeys {
 public:
  // unset: the default of a row without one.
  FileKeys(std::string_view dialect, std::string_view unset);

  // Null if unknown.
  const FileKey* find(std::string_view name) const;
  // For suggesting the nearest name.
  std::vector<std::string> names() const;
  // True if there are keys below this name: "optimizer".
  bool is_section(std::string_view name) const;
  const std::vector<FileKey>& all() const { return keys_; }

 private:
  std::vector<FileKey> keys_;
};

const FileKeys& torchtitan_keys();
const FileKeys& torchtune_keys();
const FileKeys& axolotl_keys();
const FileKeys& llamafactory_keys();
const FileKeys& trl_keys();

}  // namespace megalith

// The keys of other trainers' files, torchtitan's jobs and torchtune's recipes: what each is without a word of the
// file, and what becomes of it here. The rows are config/dialects/torchtitan.table and torchtune.table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class FileKeyKind {
  kOption,    // one option of ours: `text`
  kAlias,     // an older name of the key `text`, which counts where both are written
  kRule,      // read by a row of torchtitan_rules.table or torchtune_rules.table, or by the code beside them
  kNoEffect,  // changes nothing here, and is named
  kRefused,   // an error unless it is as it would be without a word: `text` says what it asks for
};

struct FileKey {
  std::string name;  // "training.steps"; with ".*" at its end all keys below
  FileKeyKind kind;
  std::string fallback;  // what the other trainer takes when nobody says anything
  std::string text;
};

class FileKeys {
 public:
  // unset: what a row without a fallback has.
  FileKeys(std::string_view dialect, std::string_view unset);

  // Null when there is no such key.
  const FileKey* find(std::string_view name) const;
  // For the nearest name.
  std::vector<std::string> names() const;
  // Whether keys lie below this name: "optimizer".
  bool is_section(std::string_view name) const;
  const std::vector<FileKey>& all() const { return keys_; }

 private:
  std::vector<FileKey> keys_;
};

const FileKeys& torchtitan_keys();
const FileKeys& torchtune_keys();

}  // namespace megalith

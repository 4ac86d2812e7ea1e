// See file_keys.h.
#include "compat/file_keys.h"

#include <algorithm>
#include <set>

#include "config/dialect.h"

namespace megalith {
namespace {

constexpr std::string_view kBelow = ".*";

bool is_below(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

FileKeys::FileKeys(std::string_view dialect, std::string_view unset) {
  std::set<std::string> names;
  for (const DialectRow& row : dialect_rows(dialect, {"key", "kind", "fallback", "text"})) {
    const auto kind = row.choose<FileKeyKind>(row.cells[1], {{"option", FileKeyKind::kOption},
                                                             {"alias", FileKeyKind::kAlias},
                                                             {"rule", FileKeyKind::kRule},
                                                             {"no_effect", FileKeyKind::kNoEffect},
                                                             {"refused", FileKeyKind::kRefused}});
    MEGALITH_CHECK(names.insert(row.cells[0]).second, "{}: '{}' stands twice in the table", row.where, row.cells[0]);
    keys_.push_back({row.cells[0], kind, row.cells[2].empty() ? std::string(unset) : row.cells[2], row.cells[3]});
  }
}

const FileKey* FileKeys::find(std::string_view name) const {
  for (const FileKey& key : keys_) {
    if (key.name == name) return &key;
  }
  for (const FileKey& key : keys_) {
    if (key.name.ends_with(kBelow) && is_below(name, key.name.substr(0, key.name.size() - kBelow.size()))) return &key;
  }
  return nullptr;
}

std::vector<std::string> FileKeys::names() const {
  std::vector<std::string> names;
  for (const FileKey& key : keys_) {
    if (!key.name.ends_with(kBelow)) names.push_back(key.name);
  }
  return names;
}

bool FileKeys::is_section(std::string_view name) const {
  return std::any_of(keys_.begin(), keys_.end(), [&](const FileKey& key) { return is_below(key.name, name); });
}

const FileKeys& torchtitan_keys() {
  static const FileKeys keys("torchtitan", "");
  return keys;
}

const FileKeys& torchtune_keys() {
  static const FileKeys keys("torchtune", "null");
  return keys;
}

const FileKeys& axolotl_keys() {
  static const FileKeys keys("axolotl", "null");
  return keys;
}

const FileKeys& llamafactory_keys() {
  static const FileKeys keys("llamafactory", "null");
  return keys;
}

const FileKeys& trl_keys() {
  static const FileKeys keys("trl", "null");
  return keys;
}

}  // namespace megalith

// YAML files composed of others, each value with its place.
//
//   extends: base.yaml | [a.yaml, b.yaml]   deep-merged below this file's own keys; later files beat earlier ones
//   bases: [a.yaml]                         the same, and this file may only name keys that a base has
//   includes: [a.yaml]                      fills in what is still missing; the first file beats later ones
//   key: ${VAR} or ${VAR:default}           replaced from the environment; an unset VAR without default is an error
//
// Paths are relative to the file that names them. Source: Primus primus/core/config/*.py (v26.5) for `extends`,
// primus/core/utils/yaml_utils.py (v0.1.0) for `bases` and `includes`.
//
// Files are untrusted: bounds on size, depth, number of values (aliases count at each use) and of files; cycles and
// faults are reported as errors.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option_value.h"
#include "core/error.h"

namespace megalith {

using EnvironmentMap = std::map<std::string, std::string>;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;                                        // kScalar, variables replaced
  bool is_quoted = false;                                  // kScalar
  std::string secret;                                      // kScalar: the variable in it that is a secret by name
  std::vector<YamlNode> items;                             // kList
  std::vector<std::pair<std::string, YamlNode>> children;  // kMap, in order, keys unique
  std::string where;                                       // "recipe.yaml:31"

  const YamlNode* find(std::string_view key) const;  // kMap
  bool is_map() const { return kind == Kind::kMap; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  // Null, scalar or list of scalars as an option's value; UserError for maps, other lists, and secrets, because options
  // are written down.
  WrittenValue written() const;
  // UserError for a secret: options are written down, and messages quote file names.
  void refuse_secret() const;
};

struct YamlDocument {
  YamlNode root;  // kNull when the file could not be read
  std::vector<UserError> errors;
  std::vector<std::string> notes;  // such as a key written twice
};

YamlDocument load_yaml(const std::filesystem::path& file, const EnvironmentMap& environment);

// Replaces ${VAR} and ${VAR:default}; nested forms are not supported, other text stays. UserError for an unset variable
// without default.
// secret  receives the name of a set variable that is a secret by name: HF_TOKEN, WANDB_API_KEY
std::string substitute_variables(std::string_view text, const EnvironmentMap& environment,
                                 std::string* secret = nullptr);

}  // namespace megalith

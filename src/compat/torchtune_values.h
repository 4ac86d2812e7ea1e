// What a recipe of torchtune says: its keys flattened ("optimizer.lr"), changed by words of the command line, with
// ${KEY} replaced by that key's value.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compat/file_keys.h"
#include "config/option_value.h"
#include "config/yaml_document.h"
#include "core/error.h"

namespace megalith {

struct RecipeValue {
  WrittenValue written;
  std::string where;  // "70B_lora.yaml:31", "command line"
};

class RecipeValues {
 public:
  // What is wrong goes to errors: a file that cannot be read, unknown keys, a ~KEY of nothing.
  RecipeValues(const std::filesystem::path& file, const std::vector<std::string>& words,
               const EnvironmentMap& environment, std::vector<UserError>& errors);

  // Null where the recipe does not say it; what is written as null counts as said by find() only.
  const RecipeValue* find(std::string_view name) const;
  bool is_given(std::string_view name) const;
  // The recipe's word, else `fallback`, which is torchtune's own.
  std::string text(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> items(std::string_view name) const;
  // UserErrors that name the place, for what does not read so.
  bool is_on(std::string_view name, bool fallback) const;
  int64_t whole(std::string_view name, int64_t fallback) const;
  double number(std::string_view name, double fallback) const;

  // "70B_lora.yaml:31: optimizer.lr 3e-4", or "torchtune's default: …".
  std::string said(std::string_view name, std::string_view fallback = "") const;
  [[noreturn]] void refuse(std::string_view name, std::string_view expected, std::string remedy = "") const;

  const std::map<std::string, RecipeValue, std::less<>>& all() const { return values_; }

 private:
  void flatten(const YamlNode& node, const std::string& prefix);
  void change(const std::string& word);
  void replace_keys(RecipeValue& value, int depth) const;

  std::string file_;
  std::map<std::string, RecipeValue, std::less<>> values_;
  std::vector<UserError>& errors_;
};

// Whether a word of the command line is a recipe's: ~KEY, or KEY=VALUE of a key or section of recipes.
bool is_recipe_word(std::string_view word);

}  // namespace megalith

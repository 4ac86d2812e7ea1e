// What a recipe of torchtune says: its keys flattened ("optimizer.lr"), changed by words of the command line, with
// ${KEY} replaced by that key's value.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "compat/file_words.h"
#include "config/yaml_document.h"

namespace megalith {

class RecipeWords : public FileWords {
 public:
  // What is wrong goes to result.errors: a file that cannot be read, unknown keys, a ~KEY of nothing.
  RecipeWords(const std::filesystem::path& file, const std::vector<std::string>& words,
              const std::filesystem::path& config_root, const EnvironmentMap& environment);

 protected:
  const std::string file_;

 private:
  void flatten(const YamlNode& node, const std::string& prefix);
  void change(const std::string& word);
  void replace_keys(FileWord& word, int depth) const;
  void check_keys();
};

// Whether a word of the command line is a recipe's: ~KEY, or KEY=VALUE of a key or section of recipes.
bool is_recipe_word(std::string_view word);

// The options of a recipe's data set: its rows, the part of them that is for validation, packs.
void choose_recipe_data(RecipeWords& words, const WordRules& rules);

}  // namespace megalith

// Words of a torchtune recipe: keys flattened ("optimizer.lr"), changed by the command line, ${KEY} replaced by that
// key's value.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "compat/file_words.h"

namespace megalith {

class RecipeWords : public FileWords {
 public:
  // Errors go to result.errors: an unreadable file, unknown keys, a ~KEY that is not set.
  RecipeWords(const std::filesystem::path& file, const std::vector<std::string>& words,
              const std::filesystem::path& config_root, const EnvironmentMap& environment);

  // dataset may be a list, whose items are below the key one at a time: the first, until another is taken. Words of the
  // command line are of all.
  size_t num_sets() const { return std::max<size_t>(sets_.size(), 1); }
  void take_set(size_t index);

 protected:
  void take_list(const std::string& name, const YamlNode& node) override;
  const std::string file_;

 private:
  void change(const std::string& word);
  void replace_keys(FileWord& word, int depth) const;

  std::vector<YamlNode> sets_;
};

// True for a recipe's word: ~KEY, or KEY=VALUE of a recipe's key or section.
bool is_recipe_word(std::string_view word);

// Sets the options of a recipe's data set: rows, validation split, packing.
void choose_recipe_data(RecipeWords& words, const WordRules& rules);

}  // namespace megalith

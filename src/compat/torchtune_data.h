// The data sets of torchtune's recipes, as options of ours.
#pragma once

#include <string>
#include <vector>

#include "compat/torchtune_values.h"
#include "config/option_value.h"

namespace megalith {

struct RecipeSetting {
  std::string key;  // of the recipe, which says it
  std::string option;
  WrittenValue value;
};

// UserError with the place for a data set without a counterpart, a part of one that is not read, and packs without a
// length.
std::vector<RecipeSetting> recipe_data_settings(const RecipeValues& values, std::vector<std::string>& notes);

}  // namespace megalith

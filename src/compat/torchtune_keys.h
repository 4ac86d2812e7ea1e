// The keys of torchtune's recipe files, and what becomes of each here.
//
// Source: meta-pytorch/torchtune v0.6 and later, recipes/configs and recipes/{full,lora}_finetune_*.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class RecipeKeyKind {
  kOption,    // one option of ours: `text`
  kRule,      // read by a rule of torchtune_recipe.cc
  kNoEffect,  // changes nothing here, and is named when it is written otherwise than `neutral`
  kRefused,   // an error unless it is `neutral`: `text` says what it asks for
};

struct RecipeKey {
  std::string_view name;  // "optimizer.lr"; with ".*" at its end all keys below
  RecipeKeyKind kind;
  std::string_view text = "";
  std::string_view neutral = "null";  // in lower case
};

// Null when no recipe has such a key.
const RecipeKey* find_recipe_key(std::string_view name);
// For the nearest name.
std::vector<std::string> recipe_key_names();
// Whether keys lie below this name: "optimizer".
bool is_recipe_section(std::string_view name);

}  // namespace megalith

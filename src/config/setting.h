// "name = value" as somebody wrote it: what the readers of files, environment and command line hand to resolve.h.
#pragma once

#include <string>

#include "config/option.h"

namespace megalith {

struct Setting {
  std::string name;  // as written, perhaps with dashes or dots
  WrittenValue value;
  OptionSource source;
};

// How messages name a setting: "--x" on the command line, "recipe.yaml:31: x" in a file.
std::string named_at(const Setting& setting);

}  // namespace megalith

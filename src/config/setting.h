// A written "name = value", as readers of files, environment and command line pass it to resolve.h.
#pragma once

#include <string>

#include "config/option.h"

namespace megalith {

struct Setting {
  std::string name;
  WrittenValue value;
  OptionSource source;
};

// Its name in messages: "--x", or in a file "recipe.yaml:31: x".
std::string named_at(const Setting& setting);

}  // namespace megalith

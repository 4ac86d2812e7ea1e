// Option values as checkpoints record them, and differences of records.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"

namespace megalith {

// Option names and YAML values, in order of declaration.
using Configuration = std::vector<std::pair<std::string, std::string>>;

Configuration configuration_of(const OptionSet& options);

// A value without yaml_scalar()'s quotes and escapes; lists are unchanged.
std::string plain_text(std::string_view value);

struct ConfigurationDifference {
  std::string name;
  std::string stored, present;  // "" where only the other has the option
  bool operator==(const ConfigurationDifference&) const = default;
};

// In the present configuration's order; options only in the stored one follow.
std::vector<ConfigurationDifference> compare_configuration(const Configuration& stored, const Configuration& present);

}  // namespace megalith

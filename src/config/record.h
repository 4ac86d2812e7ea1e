// The values of options as a checkpoint records them, and how two records differ.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"

namespace megalith {

// Option names and their values as YAML would have them, in the order of declaration.
using Configuration = std::vector<std::pair<std::string, std::string>>;

Configuration configuration_of(const OptionSet& options);

// A value without the quotes and escapes of yaml_scalar(); lists stay as they are.
std::string plain_text(std::string_view value);

struct ConfigurationDifference {
  std::string name;
  std::string stored, present;  // "" where only the other has the option
  bool operator==(const ConfigurationDifference&) const = default;
};

// In the order of the present configuration; options that only the stored one has follow.
std::vector<ConfigurationDifference> compare_configuration(const Configuration& stored, const Configuration& present);

}  // namespace megalith

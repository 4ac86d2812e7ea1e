// The configuration as a checkpoint records it, and how that of a checkpoint differs from the present one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "models/model_config.h"

namespace megalith {

// Option names and their values as YAML would have them, in the order of declaration.
using Configuration = std::vector<std::pair<std::string, std::string>>;

Configuration configuration_of(const OptionSet& options);

// A value without the quotes and escapes of yaml_scalar(); lists stay as they are.
std::string plain_text(std::string_view value);

// What the shapes and the meaning of the weights depend on, defaults filled in: two models with the same architecture
// can exchange weights. Dropouts, initialisation, padding and the like are left out.
Configuration architecture_of(const ModelConfig& config);

// The model of a checkpoint from what it stores: its architecture, and from its configuration what weights do not
// depend on.
ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration);

struct ConfigurationDifference {
  std::string name;
  std::string stored, present;  // "" where only the other has the option
  bool operator==(const ConfigurationDifference&) const = default;
};

// In the order of the present configuration; options that only the stored one has follow.
std::vector<ConfigurationDifference> compare_configuration(const Configuration& stored, const Configuration& present);

// UserError that names every field that differs. `where` is the checkpoint's folder. Without a stored architecture
// there is nothing to compare.
void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where);

}  // namespace megalith

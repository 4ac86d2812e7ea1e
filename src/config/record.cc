// Records of options; see record.h.
#include "config/record.h"

#include <charconv>
#include <map>

namespace megalith {

Configuration configuration_of(const OptionSet& options) {
  Configuration configuration;
  for (const auto& option : options.options()) configuration.emplace_back(option->name(), option->text());
  return configuration;
}

std::string plain_text(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return std::string(value);
  std::string text;
  const std::string_view inside = value.substr(1, value.size() - 2);
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\' || i + 1 == inside.size()) {
      text += inside[i];
    } else if (inside[++i] == 'x' && i + 2 < inside.size()) {
      unsigned code = 0;
      std::from_chars(inside.data() + i + 1, inside.data() + i + 3, code, 16);
      text += static_cast<char>(code);
      i += 2;
    } else {
      text += inside[i];
    }
  }
  return text;
}

std::vector<ConfigurationDifference> compare_configuration(const Configuration& stored, const Configuration& present) {
  const std::map<std::string, std::string> old_values(stored.begin(), stored.end());
  const std::map<std::string, std::string> new_values(present.begin(), present.end());
  std::vector<ConfigurationDifference> differences;
  for (const auto& [name, value] : present) {
    const auto old = old_values.find(name);
    const std::string stored_value = old == old_values.end() ? "" : old->second;
    if (old == old_values.end() || stored_value != value) differences.push_back({name, stored_value, value});
  }
  for (const auto& [name, value] : stored) {
    if (!new_values.contains(name)) differences.push_back({name, value, ""});
  }
  return differences;
}

}  // namespace megalith

#include "data/set_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

// In names of metrics blanks are underscores.
std::string key_of(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}

}  // namespace

void check_set_names(std::string_view option, const std::vector<std::string>& names, std::string_view paths,
                     size_t num_paths) {
  if (names.size() != num_paths) {
    throw UserError(fmt::format("{} has {} names, and {} has {} paths", option, names.size(), paths, num_paths),
                    "give each path its name, in their order");
  }
  // A slash would be a folder of metrics.
  const auto is_odd = [](unsigned char c) { return c == '/' || c < ' '; };
  for (const std::string& name : names) {
    const bool is_word = !name.empty() && std::ranges::none_of(name, is_odd);
    const auto is_same = [&](const std::string& other) { return key_of(other) == key_of(name); };
    if (is_word && std::ranges::count_if(names, is_same) == 1) continue;
    throw UserError(fmt::format("{} has '{}' {}", option, name, is_word ? "twice" : "as a name"),
                    "each set has a name of its own, on one line and without slashes");
  }
}

}  // namespace megalith

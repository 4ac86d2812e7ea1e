// Reading the environment; see environment.h.
#include "config/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kPrefix = "MEGALITH_";
// Families of exported variables that get a note because users expect an effect. NCCL_… is left out: the communication
// library reads it.
constexpr std::string_view kReported[] = {"NVTE_", "TE_", "HSA_", "GPU_"};

}  // namespace

EnvironmentSettings read_environment(const EnvironmentMap& environment, const OptionSet& options,
                                     const OtherCommands& others) {
  EnvironmentSettings result;
  NoEffectNotes unused("environment");
  for (const auto& [name, value] : environment) {
    const auto has_prefix = [&name = name](std::string_view prefix) { return name.starts_with(prefix); };
    if (has_prefix(kPrefix)) {
      const std::string option = lower_case(std::string_view(name).substr(kPrefix.size()));
      if (options.find(option) && value.empty()) {
        result.notes.push_back(fmt::format("the environment variable {} is empty: taken as not set", name));
      } else if (options.find(option)) {
        result.settings.push_back({option, WrittenValue::of(value), {OptionLayer::kEnvironment, name}});
      } else if (const std::string nearest = options.nearest(option);
                 !nearest.empty() && others.owners(option).empty()) {
        // Not an error: build scripts use the prefix, and people export other commands' options.
        std::string upper = fold_name(nearest);
        std::transform(upper.begin(), upper.end(), upper.begin(),
                       [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
        result.notes.push_back(
            fmt::format("the environment variable {} names no option here. Did you mean {}{}?", name, kPrefix, upper));
      }
    } else if (std::any_of(std::begin(kReported), std::end(kReported), has_prefix)) {
      if (const KnownName* known = find_known_name(name)) unused.add(name, known->text);
    }
  }
  for (const std::string& line : unused.lines()) result.notes.push_back(line);
  return result;
}

EnvironmentMap environment_snapshot() {
  EnvironmentMap result;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

}  // namespace megalith

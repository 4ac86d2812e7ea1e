#include "checkpoint/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace megalith {

ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration) {
  ModelConfig config;
  const OptionSet options(config);
  const auto apply = [&](const Configuration& values, auto is_taken) {
    for (const auto& [name, value] : values) {
      Option* option = options.find(name);
      if (option != nullptr && is_taken(option->traits())) {
        option->set(plain_text(value), {OptionLayer::kModel, "checkpoint"});
      }
    }
  };
  apply(architecture, [](const OptionTraits&) { return true; });
  apply(configuration, [](const OptionTraits& traits) { return !traits.changes_weights; });
  return config;
}

void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where) {
  if (stored.empty()) return;
  const std::vector<ConfigurationDifference> differences = compare_configuration(stored, present);
  std::vector<std::string> texts;
  for (const ConfigurationDifference& difference : differences) {
    // One program version lacks it: only tensors must fit.
    if (difference.stored.empty() || difference.present.empty()) continue;
    texts.push_back(
        fmt::format("{} is {} in the checkpoint and {} here", difference.name, difference.stored, difference.present));
  }
  if (texts.empty()) return;
  throw UserError(fmt::format("the checkpoint {} is of another model: {}", where, fmt::join(texts, "; ")),
                  "give the checkpoint's architecture, or another --load");
}

}  // namespace megalith

// See acting_options.h.
#include "cli/acting_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include "train/config.h"

namespace megalith {
namespace {

constexpr std::array<std::pair<std::string_view, RunCommand>, 11> kCommands = {{
    {"generate", RunCommand::kGenerate},
    {"chat", RunCommand::kGenerate},
    {"serve", RunCommand::kGenerate},
    {"evaluate", RunCommand::kEvaluate},
    {"embed", RunCommand::kEmbed},
    {"inspect logits", RunCommand::kInspectLogits},
    {"plan", RunCommand::kPlan},
    {"bench gemm", RunCommand::kBenchGemm},
    {"bench ops", RunCommand::kBenchOperators},
    {"bench attention", RunCommand::kBenchOperators},
    {"bench moe", RunCommand::kBenchOperators},
}};

}  // namespace

bool is_run_option(const Option& option) {
  static Config config;
  static const OptionSet options(config);
  return options.find(option.name()) != nullptr;
}

bool acts_in(std::string_view command, const Option& option) {
  const auto* found = std::ranges::find(kCommands, command, &decltype(kCommands)::value_type::first);
  if (found == kCommands.end() || !is_run_option(option)) return true;
  return option.traits().acts_in.contains(found->second);
}

}  // namespace megalith

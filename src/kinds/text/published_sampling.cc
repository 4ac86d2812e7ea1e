#include "kinds/text/published_sampling.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith {

std::optional<std::string> take_published_sampling(const Resolved& run, SamplingOptions& sampling) {
  const std::optional<std::string>& folder = run.derived.checkpoint.load_hf;
  if (!folder) return std::nullopt;
  const std::filesystem::path file = std::filesystem::path(*folder) / "generation_config.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  const Json json = parse_json(read_file(file), file.string());
  std::string taken;
  const auto take = [&](const char* key, auto& value, const auto& option) {
    if (option.is_set() || !json.contains(key) || json[key].is_null()) return;
    value = json_as<std::decay_t<decltype(value)>>(json[key], fmt::format("{}: {}", file.string(), key));
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", key, value);
  };
  const OptionSet& options = *run.options;
  const SamplingOptions& asked = run.config.sampling;
  const bool is_greedy = json.contains("do_sample") && json["do_sample"] == false;
  if (is_greedy && !options.of(asked.temperature).is_set()) {
    sampling.temperature = 0;
    taken = "temperature 0";
  } else {
    take("temperature", sampling.temperature, options.of(asked.temperature));
    take("top_k", sampling.top_k, options.of(asked.top_k));
    take("top_p", sampling.top_p, options.of(asked.top_p));
  }
  if (taken.empty()) return std::nullopt;
  if (sampling.temperature < 0 || sampling.top_k < 0 || sampling.top_p <= 0 || sampling.top_p > 1) {
    throw UserError(fmt::format("{} has {}, which cannot be sampled with", file.string(), taken),
                    "give --temperature, --top_k and --top_p");
  }
  return fmt::format("sampling as the model's generation_config.json has it: {}", taken);
}

}  // namespace megalith

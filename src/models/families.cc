// Every family we can build; explicit, so that linking never drops one.
#include "models/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/hf_config.h"

namespace megalith {

extern const ModelFamily kLlama, kQwen2, kQwen3, kMixtral, kDeepseekV2, kDeepseekV3, kGpt2, kGpt;

namespace {

const ModelFamily* const kFamilies[] = {&kLlama,      &kQwen2,      &kQwen3, &kMixtral,
                                        &kDeepseekV2, &kDeepseekV3, &kGpt2,  &kGpt};

std::string names_of_families(std::string_view ModelFamily::*word) {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : kFamilies) {
    if (!(family->*word).empty()) names.push_back(family->*word);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::span<const ModelFamily* const> model_families() { return kFamilies; }

const ModelFamily& family_for(const ModelConfig& config) {
  for (const ModelFamily* family : kFamilies) {
    if (family->provides(config)) return *family;
  }
  std::vector<UserError> errors = check_model_config(config);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  throw UserError("no model family here provides this architecture",
                  fmt::format("families: {}", names_of_families(&ModelFamily::name)));
}

std::vector<Unit> model_units(const ModelConfig& config) {
  const ModelFamily& family = check_model_config(config).empty() ? family_for(config) : kGpt;
  return family.units(config);
}

HfModel read_hf_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kHfConfigFile;
  if (!std::filesystem::exists(file)) {
    throw UserError(fmt::format("{} has no {}", folder.string(), kHfConfigFile),
                    "give a folder that holds a Hugging Face model: config.json, *.safetensors, tokenizer.json");
  }
  const Json json = load_json(file);
  const auto type = json_get<std::string>(json, "model_type", file.string());
  const auto found = std::ranges::find_if(
      kFamilies, [&](const ModelFamily* family) { return !type.empty() && family->hf_model_type == type; });
  if (found == std::ranges::end(kFamilies)) {
    throw UserError(fmt::format("{}: model_type '{}' is not provided", file.string(), type),
                    fmt::format("provided are {}", names_of_families(&ModelFamily::hf_model_type)));
  }
  const ModelFamily& family = **found;
  if (const Json* classes = find_member(json, "architectures", file.string())) {
    const auto names = json_as<std::vector<std::string>>(*classes, file.string() + ": architectures");
    if (!names.empty() && std::ranges::find(names, family.hf_class) == names.end()) {
      throw UserError(
          fmt::format("{}: architectures is [{}], expected {}", file.string(), fmt::join(names, ", "), family.hf_class),
          "only language models with their output head can be loaded");
    }
  }
  check_hf_bounds(json, file.string());
  ModelConfig config = family.from_hf(json);
  std::vector<UserError> errors = check_model_config(config);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return {&family, std::move(config)};
}

}  // namespace megalith

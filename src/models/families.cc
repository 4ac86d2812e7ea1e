// Every family we can build; explicit, so that linking never drops one.
#include "models/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "models/architecture.h"
#include "models/hf_rows.h"
#include "models/hf_text_part.h"
#include "models/model_head.h"

namespace megalith {

extern const ModelFamily kLlama, kMistral, kQwen2, kQwen3, kQwen3Moe, kGemma2, kGemma3, kMixtral, kOlmo2, kOlmo3,
    kDeepseekV2, kDeepseekV3, kGlm4Moe, kGptOss, kLlama4, kSmolLm3, kLfm2, kLfm2Moe, kGpt2, kGpt, kT5, kMegatronT5,
    kBert, kMegatronBert, kEncoder, kBiencoder, kFlux, kFluxLike;

namespace {

const ModelFamily* const kFamilies[] = {&kLlama,   &kMistral,   &kQwen2,  &kQwen3,      &kQwen3Moe,   &kGemma2,
                                        &kGemma3,  &kMixtral,   &kOlmo2,  &kOlmo3,      &kDeepseekV2, &kDeepseekV3,
                                        &kGlm4Moe, &kGptOss,    &kLlama4, &kSmolLm3,    &kLfm2,       &kLfm2Moe,
                                        &kGpt2,    &kGpt,       &kT5,     &kMegatronT5, &kBert,       &kMegatronBert,
                                        &kEncoder, &kBiencoder, &kFlux,   &kFluxLike};

std::string names_of_families(std::string_view ModelFamily::*word) {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : kFamilies) {
    if (!(family->*word).empty()) names.push_back(family->*word);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Cached: building rows takes longer than reading a file with them.
const HfRows& rows_of(const ModelFamily& family) {
  static const std::map<const ModelFamily*, HfRows> kRows = [] {
    std::map<const ModelFamily*, HfRows> rows;
    for (const ModelFamily* family : kFamilies) {
      if (family->hf_rows != nullptr) rows.emplace(family, family->hf_rows());
    }
    return rows;
  }();
  return kRows.at(&family);
}

// A model's form in a family's class.
struct Translation {
  std::vector<std::string> differences;  // by option; empty: expressed in full
  bool is_refused = false;               // no such file exists; the only text says why
};

// A model to find a family for, with what families are compared by.
struct AskedModel {
  explicit AskedModel(ModelConfig model) : config(std::move(model)), options(config), meaning(meaning_of(config)) {}

  ModelConfig config;
  OptionSet options;
  Configuration meaning;
};

// `model` with the training options of `asked`: some rules involve both.
ModelConfig trained_as(const AskedModel& asked, ModelConfig model) {
  const OptionSet options(model);
  for (const auto& option : options.options()) {
    if (!option->traits().changes_weights) option->take(*asked.options.find(option->name()));
  }
  return model;
}

Translation translate(const ModelFamily& family, const AskedModel& asked) {
  const ModelConfig& config = asked.config;
  try {
    const Json json = family.to_hf(config, at::kFloat);
    ModelConfig given = family.from_hf(json);
    // from_hf() leaves out a file's prediction modules; a run asks for them.
    given.mtp_num_layers = json_find<int64_t>(json, "num_nextn_predict_layers", kHfConfigFile);
    if (const std::vector<UserError> errors = check_model_config(trained_as(asked, given)); !errors.empty()) {
      return {{errors.front().message()}, true};
    }
    Translation result;
    for (const ConfigurationDifference& one : compare_configuration(asked.meaning, meaning_of(given))) {
      result.differences.push_back(fmt::format("{} {}, not {}", one.name, one.present, one.stored));
    }
    return result;
  } catch (const UserError& error) {
    return {{error.message()}, true};
  }
}

// Files need some size; its value does not matter.
ModelConfig with_vocabulary(ModelConfig config) {
  if (config.vocab_size || config.is_diffusion()) return config;
  config.vocab_size = 1;
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

}  // namespace

ModelConfig ModelFamily::from_hf(const Json& file) const {
  ModelConfig config;
  config.model_type = model_type;
  rows_of(*this).read(file, kHfConfigFile, config);
  if (const ModelHead* head = find_head(file)) {
    config = with_head(std::move(config), head->model_type);
    head->hf_rows().read(file, kHfConfigFile, config);
  }
  return config;
}

Json ModelFamily::to_hf(const ModelConfig& config, at::ScalarType dtype) const {
  Json json;
  if (model_type == ModelType::kDiffusion) {
    json = {{"_class_name", hf_class}, {"_diffusers_version", "0.35.2"}};
  } else {
    const bool is_half = dtype == at::kHalf, is_double = dtype == at::kDouble;
    json = {{"architectures", {hf_class}}, {"model_type", hf_model_type}, {"transformers_version", "4.57.1"}};
    json["torch_dtype"] = dtype == at::kBFloat16 ? "bfloat16" : is_half ? "float16" : is_double ? "float64" : "float32";
    json["use_cache"] = true;
  }
  rows_of(*this).write(config, json);
  if (const ModelHead* head = find_head(config.model_type)) {
    json["architectures"] = Json::array({hf_class_of(*this, *head)});
    head->hf_rows().write(config, json);
  }
  return json;
}

std::span<const ModelFamily* const> model_families() { return kFamilies; }

const ModelFamily& family_for(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_config(config);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  ModelConfig without = with_vocabulary(config);
  // The choice of rotated channels changes no tensor's name or shape: the family matches, and make_hf_config() refuses
  // it.
  const ModelConfig defaults;
  without.rotary_interleaved = defaults.rotary_interleaved;
  without.rotary_percent = defaults.rotary_percent;
  // A class may itself rotate adjacent pairs.
  const AskedModel asked(std::move(without));
  std::optional<AskedModel> exact;
  if (config.rotary_interleaved) exact.emplace(with_vocabulary(config));
  const auto found = std::ranges::find_if(kFamilies, [&](const ModelFamily* family) {
    return family->model_type == config.stack_type() &&
           (family->hf_rows == nullptr || translate(*family, asked).differences.empty() ||
            (exact && translate(*family, *exact).differences.empty()));
  });
  MEGALITH_CHECK(found != std::ranges::end(kFamilies), "no family takes the rest");
  return **found;
}

Json make_hf_config(const ModelFamily& family, const ModelConfig& config, at::ScalarType dtype) {
  const ModelHead* head = find_head(config.model_type);
  if (head != nullptr && std::ranges::find(head->without_class, family.name) != head->without_class.end()) {
    throw UserError(fmt::format("transformers has no {} for models of the family {}, so it cannot be exported",
                                head->hf_class, family.name),
                    "leave save_hf out; its checkpoints can be loaded here");
  }
  const ModelFamily* nearest = nullptr;
  std::vector<std::string> differences;
  if (family.hf_rows != nullptr) {
    Json json = family.to_hf(config, dtype);
    nearest = &family;
    differences = translate(family, AskedModel(config)).differences;
    if (differences.empty()) return json;
  } else {
    const AskedModel asked(with_vocabulary(config));
    for (const ModelFamily* other : kFamilies) {
      if (other->hf_rows == nullptr || other->model_type != config.stack_type()) continue;
      Translation theirs = translate(*other, asked);
      if (theirs.is_refused || (nearest != nullptr && theirs.differences.size() >= differences.size())) continue;
      nearest = other;
      differences = std::move(theirs.differences);
    }
    if (nearest == nullptr) {
      throw UserError(fmt::format("no Hugging Face class has a model of the family {}, so it cannot be exported",
                                  family.name),
                      "leave save_hf out; its checkpoints can be loaded here");
    }
  }
  throw UserError(fmt::format("no Hugging Face class has this architecture, so it cannot be exported; the nearest, {}, "
                              "has {}",
                              nearest->hf_class, fmt::join(differences, "; ")),
                  "its checkpoints can be loaded here; for an export give these options the values of that class");
}

std::vector<Unit> model_units(const ModelConfig& config) {
  if (check_model_config(config).empty()) return family_for(config).units(config);
  switch (config.stack_type()) {
    case ModelType::kGpt:
      return kGpt.units(config);
    case ModelType::kT5:
      return kMegatronT5.units(config);
    case ModelType::kBert:
      return kEncoder.units(config);
    case ModelType::kBiencoder:
      return kBiencoder.units(config);
    case ModelType::kDiffusion:
      return kFluxLike.units(config);
    case ModelType::kClassifier:
      break;
  }
  throw InternalError("a model type without a row here");
}

HfModel read_hf_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kHfConfigFile;
  if (!std::filesystem::exists(file)) {
    throw UserError(fmt::format("{} has no {}", folder.string(), kHfConfigFile),
                    "give a folder that holds a Hugging Face model: config.json, *.safetensors, tokenizer.json");
  }
  Json json = load_json(file);
  std::vector<std::string> notes;
  if (const HfTextPart* part = find_hf_text_part(json)) {
    json = text_config_of(*part, json, file.string());
    notes.push_back(fmt::format("{}: only the language model of {} is loaded; tensors of images ({}*) are passed over",
                                file.string(), part->hf_class, fmt::join(part->others, "*, ")));
  }
  const bool is_of_diffusers = find_member(json, "_class_name", file.string()) != nullptr;
  const auto type = json_get<std::string>(json, is_of_diffusers ? "_class_name" : "model_type", file.string());
  const auto found = std::ranges::find_if(
      kFamilies, [&](const ModelFamily* family) { return !type.empty() && family->hf_model_type == type; });
  if (found == std::ranges::end(kFamilies)) {
    throw UserError(fmt::format("{}: {} '{}' is not provided", file.string(),
                                is_of_diffusers ? "_class_name" : "model_type", type),
                    fmt::format("provided are {}", names_of_families(&ModelFamily::hf_model_type)));
  }
  const ModelFamily& family = **found;
  if (const Json* classes = find_member(json, "architectures", file.string())) {
    const auto names = json_as<std::vector<std::string>>(*classes, file.string() + ": architectures");
    const ModelHead* head = find_head(json);
    const bool is_read = std::ranges::any_of(names, [&](const std::string& name) {
      return name == family.hf_class || (head != nullptr && name == hf_class_of(family, *head)) ||
             std::ranges::find(family.other_classes, name) != family.other_classes.end();
    });
    if (!names.empty() && !is_read) {
      throw UserError(
          fmt::format("{}: architectures is [{}], expected {}", file.string(), fmt::join(names, ", "), family.hf_class),
          "only language models with their output head can be loaded");
    }
  }
  ModelConfig config = family.from_hf(json);
  // transformers loads such a file. GPT-2's has 50256 at any vocabulary size.
  std::erase_if(config.eos_token_ids, [&](int64_t token) {
    if (!config.vocab_size || token < *config.vocab_size) return false;
    notes.push_back(fmt::format("{}: eos_token_id {} is not below vocab_size {}: it cannot occur, and ends no text",
                                file.string(), token, *config.vocab_size));
    return true;
  });
  std::vector<UserError> errors = check_model_config(config);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return {&family, std::move(config), std::move(notes)};
}

}  // namespace megalith

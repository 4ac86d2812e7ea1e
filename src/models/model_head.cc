#include "models/model_head.h"

#include <algorithm>

#include "models/architecture.h"

namespace megalith {

extern const ModelHead kClassifierHead;

namespace {

const ModelHead* const kHeads[] = {&kClassifierHead};

}  // namespace

bool ModelHead::has(std::string_view parameter) const {
  return std::ranges::any_of(parameters, [&](std::string_view begin) { return parameter.starts_with(begin); });
}

const ModelHead* find_head(ModelType type) {
  const auto found = std::ranges::find(kHeads, type, &ModelHead::model_type);
  return found == std::ranges::end(kHeads) ? nullptr : *found;
}

const ModelHead* find_head(const Json& file) {
  const Json* classes = find_member(file, "architectures", kHfConfigFile);
  if (classes == nullptr) return nullptr;
  const auto names = json_as<std::vector<std::string>>(*classes, fmt::format("{}: architectures", kHfConfigFile));
  const auto found = std::ranges::find_if(kHeads, [&](const ModelHead* head) {
    return std::ranges::any_of(names, [&](const std::string& name) { return name.ends_with(head->hf_class); });
  });
  return found == std::ranges::end(kHeads) ? nullptr : *found;
}

std::string hf_class_of(const ModelFamily& family, const ModelHead& head) {
  std::string_view stem = family.hf_class;
  for (const std::string_view own : {"ForCausalLM", "LMHeadModel", "ForPreTraining"}) {
    if (stem.ends_with(own)) stem.remove_suffix(own.size());
  }
  // Gemma3ForSequenceClassification reads pictures too.
  return fmt::format("{}{}{}", stem, family.hf_model_type == "gemma3_text" ? "Text" : "", head.hf_class);
}

ModelConfig with_head(ModelConfig config, ModelType type) {
  const ModelTypes own = {ModelType::kGpt, ModelType::kBert};
  if (find_head(type) == nullptr || !own.contains(config.model_type)) return config;
  // Makes values derived from the old type explicit.
  config.causal = config.is_causal();
  if (config.token_types() > 0) config.num_token_types = config.token_types();
  config.model_type = type;
  return as_read(std::move(config));
}

}  // namespace megalith

#include "models/hf_text_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "core/json.h"

namespace megalith {
namespace {

const HfTextPart kLlama4WithImages = {.model_type = "llama4",
                                      .hf_class = "Llama4ForConditionalGeneration",
                                      .text_model_type = "llama4_text",
                                      .text_hf_class = "Llama4ForCausalLM",
                                      .prefix = "language_model.",
                                      .others = {"vision_model.", "multi_modal_projector."}};

}  // namespace

const HfTextPart* find_hf_text_part(const Json& config) {
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  return type != config.end() && *type == kLlama4WithImages.model_type ? &kLlama4WithImages : nullptr;
}

Json text_config_of(const HfTextPart& part, const Json& config, std::string_view where) {
  Json text = get_member(config, "text_config", std::string(where));
  for (const char* key : {"tie_word_embeddings", "quantization_config"}) {
    if (config.contains(key)) text[key] = config[key];
  }
  text["model_type"] = part.text_model_type;
  text.erase("architectures");
  const auto classes = config.find("architectures");
  if (classes == config.end() || !classes->is_array()) return text;
  const bool is_known = std::find(classes->begin(), classes->end(), part.hf_class) != classes->end();
  text["architectures"] = is_known ? Json::array({part.text_hf_class}) : *classes;
  return text;
}

}  // namespace megalith

// Hugging Face folders of models that also see images; only the language model is loaded.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace megalith {

struct HfTextPart {
  std::string_view model_type, hf_class;            // of the whole model, in config.json
  std::string_view text_model_type, text_hf_class;  // of the language model; keys are in text_config
  std::string_view prefix;                          // of its tensors' names
  std::vector<std::string_view> others;
};

// Null for other files.
const HfTextPart* find_hf_text_part(const nlohmann::json& config);

// config.json of the language model by itself. UserError without a text_config.
nlohmann::json text_config_of(const HfTextPart& part, const nlohmann::json& config, std::string_view where);

}  // namespace megalith

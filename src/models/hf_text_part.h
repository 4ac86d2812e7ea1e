// Hugging Face folders of models that also see images, of which the language model is loaded by itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace megalith {

struct HfTextPart {
  std::string_view model_type, hf_class;            // of the whole, in config.json
  std::string_view text_model_type, text_hf_class;  // of its language model, whose keys lie in text_config
  std::string_view prefix;                          // of the names of its tensors
  std::vector<std::string_view> others;             // how names of the other tensors begin
};

// Null for every other kind of file.
const HfTextPart* find_hf_text_part(const nlohmann::json& config);

// config.json as the language model would have it in a folder of its own. UserError when there is no text_config.
nlohmann::json text_config_of(const HfTextPart& part, const nlohmann::json& config, std::string_view where);

}  // namespace megalith

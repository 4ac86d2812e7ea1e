// Post-processors: the tokens put around a text. The components of tokenizer.json's "post_processor".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace megalith {

struct TokenFrame {
  std::vector<int32_t> before, after;
};

// Reads the component for a single text. UserError for an unknown one, naming it and `where`.
TokenFrame read_post_processor(const nlohmann::json& json, std::string_view where);

}  // namespace megalith

// A JSON value as a person would write it.
#pragma once

#include <string>

#include "core/json.h"

namespace megalith {

// A text without its quotes; other values as JSON.
inline std::string plain_text(const Json& value) {
  const std::string* text = try_text(value);
  return text != nullptr ? *text : dump_json(value);
}

}  // namespace megalith

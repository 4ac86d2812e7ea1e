// A user's architecture at toy width (verify/toy_config.h): TokenKind::shrink_model().
#pragma once

#include <cstdint>

#include "models/model_config.h"

namespace megalith {

int64_t toy_prediction_modules(const ModelConfig& user);

}  // namespace megalith

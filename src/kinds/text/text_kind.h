// Decoders, which continue a text.
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class TextKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kGpt; }
  std::string_view default_task() const override { return {}; }
};

}  // namespace megalith

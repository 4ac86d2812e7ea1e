// Encoders such as BERT: predict masked tokens from both sides, and the order of two segments.
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class EncoderKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kBert; }
  std::string_view default_task() const override { return "bert"; }
};

}  // namespace megalith

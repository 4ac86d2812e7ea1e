// Encoders as BERT: hidden tokens are told from both sides, and whether two segments are in their order.
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class EncoderKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kBert; }
  std::string_view default_task() const override { return "bert"; }
};

}  // namespace megalith

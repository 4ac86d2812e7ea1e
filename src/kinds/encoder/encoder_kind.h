// Encoders such as BERT: predict masked tokens from both sides, and the order of two segments.
#pragma once

#include "kinds/text/token_kind.h"
#include "models/transformer.h"
#include "train/activation_report.h"

namespace megalith {

class EncoderKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kBert; }
  std::string_view default_task() const override { return "bert"; }
  void complete_shapes(ModelInput& input, const Resolved& run, int64_t /*encoder_s*/) const override {
    if (run.config.task.task == TaskKind::kBert) add_shapes(input, run.config.model, {{input::kSentenceLabels}});
  }
};

}  // namespace megalith

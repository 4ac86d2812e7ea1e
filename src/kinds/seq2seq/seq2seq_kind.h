// Encoder-decoders such as T5: the decoder answers the encoder's input.
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class Seq2SeqKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kT5; }
  std::string_view default_task() const override { return "t5"; }
  CostShape sample_shape(const Resolved& run) const override;
  int64_t tokens_per_sample(const Resolved& run) const override;
  void complete_shapes(ModelInput& input, const Resolved& run, int64_t encoder_s) const override;
  void check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const override;
  void check_layout(const Config& config, std::vector<UserError>& errors) const override;
  std::string sample_text(const Resolved& run) const override;
  ModelInput some_input(const ModelConfig& config) const override;
  bool takes_given_targets() const override { return true; }
  std::vector<UserError> check_given(const GivenInput& given) const override;
  ModelInput make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const override;
};

}  // namespace megalith

// Biencoders: two encoders whose vectors are compared, so that a question finds its text.
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class RetrievalKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kBiencoder; }
  std::string_view default_task() const override { return "ict"; }
  int64_t tokens_per_sample(const Resolved& run) const override { return 2 * sample_shape(run).s; }
  void complete_shapes(ModelInput& input, const Resolved& run, int64_t encoder_s) const override;
  void check_layout(const Config& config, std::vector<UserError>& errors) const override;
  // Both encoders start from --bert_load.
  std::vector<UserError> check_weights(const Resolved& run) const override;
  bool load_first_weights(const Resolved& run, std::span<const CheckpointTensor> tensors, const Groups& groups,
                          Logger& log) const override;
  std::vector<std::pair<std::string, std::string>> report_rows(const Resolved& run) const override;
  bool has_objective_of_sets() const override { return true; }
};

}  // namespace megalith

// Sequence classifiers, on the layers of a decoder or of a BERT (docs/classification.md).
#pragma once

#include "kinds/text/token_kind.h"

namespace megalith {

class ClassifierKind final : public TokenKind {
 public:
  ModelType type() const override { return ModelType::kClassifier; }
  std::string_view default_task() const override { return "classification"; }
  void complete_shapes(ModelInput& input, const Resolved& run, int64_t encoder_s) const override;
  void check_task(const Resolved& run, std::vector<UserError>& errors) const override;

  // Rows of texts with labels (class_rows.h); all are validated before the run.
  bool reads_texts(const Config& config) const override { return config.data.has_paths(); }
  std::vector<UserError> check_data(Resolved& run) const override;
  void fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                    std::vector<UserError>& errors) const override;
  void prepare_data(Resolved& /*run*/, Logger& /*log*/) const override {}
  int64_t count_sequences(const Resolved& run) const override;

  std::vector<std::pair<std::string, std::string>> report_rows(const Resolved& run) const override;
  void shrink_model(const ParallelOptions& ranks, const ModelConfig& asked, const std::vector<int64_t>& sources,
                    ModelConfig& toy) const override;
};

}  // namespace megalith

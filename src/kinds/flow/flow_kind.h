// Transformers that generate pictures from noise, such as FLUX.
#pragma once

#include "train/kind.h"

namespace megalith {

class FlowKind final : public Kind {
 public:
  ModelType type() const override { return ModelType::kDiffusion; }
  std::string_view default_task() const override { return "flow_matching"; }

  CostShape sample_shape(const Resolved& run) const override;
  int64_t tokens_per_sample(const Resolved& run) const override;
  void complete_shapes(ModelInput& input, const Resolved& run, int64_t encoder_s) const override;
  void check_sequence(const Config& config, Derived& d, std::vector<UserError>& errors) const override;
  void check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const override;
  void check_layout(const Config& config, std::vector<UserError>& errors) const override;
  std::unique_ptr<Task> make_task(const Resolved& run) const override;
  void check_task(const Resolved& run, std::vector<UserError>& errors) const override;

  std::vector<UserError> check_data(Resolved& run) const override;
  void fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                    std::vector<UserError>& errors) const override;
  bool reads_texts(const Config& /*config*/) const override { return false; }
  void prepare_data(Resolved& run, Logger& log) const override;
  int64_t count_sequences(const Resolved& run) const override;

  bool draws_pictures() const override { return true; }
  std::unique_ptr<RunSamples> make_samples(const Resolved& run, at::Device device, bool is_shown,
                                           Logger& log) const override;
  void describe(const Resolved& run, StepRecord& record) const override;

  std::string sample_text(const Resolved& run) const override;
  std::string shape_text(const Resolved& run, const ModelConfig& model) const override;

  void shrink_model(const ParallelOptions& ranks, const ModelConfig& asked, const std::vector<int64_t>& sources,
                    ModelConfig& toy) const override;
  void shrink_sample(const Config& asked, Config& toy) const override;
  ModelInput some_input(const ModelConfig& config) const override;
  bool takes_given_targets() const override { return true; }
  std::vector<UserError> check_given(const GivenInput& given) const override;
  ModelInput make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const override;
};

}  // namespace megalith

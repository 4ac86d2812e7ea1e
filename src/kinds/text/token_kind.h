// Shared by kinds of models that read tokens; text_kind.h adds the decoders.
#pragma once

#include "train/config.h"
#include "train/kind.h"

namespace megalith {

class TokenKind : public Kind {
 public:
  CostShape sample_shape(const Resolved& run) const override;
  void check_sequence(const Config& config, Derived& d, std::vector<UserError>& errors) const override;
  void check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const override;
  std::unique_ptr<Task> make_task(const Resolved& run) const override;
  void check_task(const Resolved& run, std::vector<UserError>& errors) const override;

  // Token files, texts that they are made of, and files of instructions. Hub names count as found.
  std::vector<UserError> check_data(Resolved& run) const override;
  void fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                    std::vector<UserError>& errors) const override;
  bool reads_texts(const Config& config) const override { return config.data.sft.has_paths(); }  // instructions
  void prepare_data(Resolved& run, Logger& log) const override;
  int64_t count_sequences(const Resolved& run) const override;

  // A continuation of a text, if the model writes any.
  std::vector<UserError> check_samples(const Resolved& run) const override;
  std::unique_ptr<RunSamples> make_samples(const Resolved& run, at::Device device, bool is_shown,
                                           Logger& log) const override;
  std::unique_ptr<References> make_references(const Resolved& run, const RunModel& model, Logger& log) const override;

  std::string sample_text(const Resolved& run) const override;
  std::string shape_text(const Resolved& run, const ModelConfig& model) const override;

  void shrink_model(const ParallelOptions& ranks, const ModelConfig& asked, const std::vector<int64_t>& sources,
                    ModelConfig& toy) const override;
  void shrink_sample(const Config& asked, Config& toy) const override;
  ModelInput some_input(const ModelConfig& config) const override;
  std::vector<UserError> check_given(const GivenInput& given) const override;
  ModelInput make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const override;
};

}  // namespace megalith

// Predicts the class of a text or a pair of texts, or a number. Rows: class_samples.h; the head:
// models/classifier_head.h.
#pragma once

#include "kinds/classifier/class_samples.h"
#include "kinds/task_setup.h"
#include "kinds/text/text_task.h"

namespace megalith {

class Classification : public TextTask {
 public:
  // UserError without a classifier.
  explicit Classification(const TaskSetup& setup);

  std::string_view name() const override { return "classification"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
  // No-op for the data sets' rows. Other rows, such as a check's, have only tokens: adds lengths, types and labels.
  void draw(Batch& rows) const override;
  std::vector<std::string> loss_names() const override { return {evaluated_names()[0]}; }
  // Rows; under context parallelism on the rank with the token that the head reads.
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  std::vector<std::string> measured_names() const override;  // "accuracy", for classes
  HeadOutput evaluated_output() const override { return HeadOutput::kLogits; }
  std::vector<std::string> evaluated_names() const override;
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;
  std::vector<LossSum> concluded(std::vector<LossSum> sums) const override;
  std::string prediction(std::span<const double> logits) const override;

 private:
  ClassSampleOptions sample_options(const DataOptions& options, int64_t sequence_length) const;
  std::shared_ptr<const ClassSamples> read(const std::vector<std::string>& paths, const DataOptions& options,
                                           int64_t sequence_length) const;
  at::Tensor weights_of(const Batch& part) const;

  ModelConfig model_;
  bool is_bert_;
  int64_t vocab_size_, rows_at_once_;
  const Tokenizer* tokenizer_;
  uint64_t key_;
};

}  // namespace megalith

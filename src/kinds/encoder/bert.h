// BERT as Megatron-LM trains it: predicts masked words from both sides and, with a sentence head, whether two segments
// are in order or swapped. Rows: masked_samples.h.
// Source: Devlin et al. 2019, arXiv:1810.04805; Lan et al. 2020, arXiv:1909.11942 (order of sentences).
#pragma once

#include "kinds/encoder/sentence_task.h"

namespace megalith {

class BertTask : public SentenceTask {
 public:
  BertTask(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "bert"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // No-op for the data sets' rows. Other rows, such as a check's, have only tokens: adds segments and lengths.
  void draw(Batch& rows) const override;
  // "lm loss", over masked tokens; with a sentence head "sop loss", over rows.
  std::vector<std::string> loss_names() const override;
  std::vector<double> count_weights(const Batch& part) const override;
  // A text's input, with token types for the embedding and sentence labels for their head (models/transformer.h).
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  // With a sentence head "sop accuracy": percentage of rows whose segment order the model predicts.
  std::vector<std::string> measured_names() const override;
  HeadOutput evaluated_output() const override;
  // The losses and the measures.
  std::vector<std::string> evaluated_names() const override;
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;

 protected:
  std::vector<NeededToken> needed_tokens(const SpecialIds& ids) const override;
  std::shared_ptr<const SampleMaker> make_samples(int64_t sequence_length,
                                                  SentenceVocabulary vocabulary) const override;

 private:
  bool has_sentence_head_;
};

}  // namespace megalith

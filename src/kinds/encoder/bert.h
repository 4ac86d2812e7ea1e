// BERT as Megatron-LM trains it: hidden words are predicted from both sides, and with a sentence head the model says
// whether two segments are in their order or were exchanged. Rows: masked_samples.h.
// Source: Devlin et al. 2019, arXiv:1810.04805; Lan et al. 2020, arXiv:1909.11942 (order of sentences).
#pragma once

#include "kinds/encoder/sentence_task.h"

namespace megalith {

class BertTask : public SentenceTask {
 public:
  BertTask(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "bert"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // The data sets have drawn already. Rows of another origin, such as a check's, have only tokens: they get segments
  // and lengths.
  void draw(Batch& rows) const override;
  // "lm loss", over hidden tokens; with a sentence head "sop loss", over rows.
  std::vector<std::string> loss_names() const override;
  std::vector<double> count_weights(const Batch& part) const override;
  // Beside a text's: token types for the embedding, labels of sentences for their head (models/transformer.h).
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  // With a sentence head "sop accuracy": the percentage of rows whose segments' order the model tells.
  std::vector<std::string> measured_names() const override;
  HeadOutput evaluated_output() const override;
  // The losses, and what is measured.
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

// The inverse cloze task, as Megatron-LM trains it: a sentence must find the text it was taken from among those of its
// set, one microbatch of all data-parallel ranks (nn/retrieval_head.h). Rows: ict_samples.h.
// Source: Lee et al. 2019, arXiv:1906.00300, §4.
#pragma once

#include "kinds/encoder/sentence_task.h"

namespace megalith {

class IctTask : public SentenceTask {
 public:
  IctTask(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "ict"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // No-op for the data sets' rows. Other rows, such as a check's, have only a text: adds a question.
  void draw(Batch& rows) const override;
  // "loss", over rows. The accuracies are the model's (Model::added_losses).
  std::vector<std::string> loss_names() const override { return {"loss"}; }
  std::vector<double> count_weights(const Batch& part) const override;
  // The members are the text's; `more` has the question's (models/biencoder.h).
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  HeadOutput evaluated_output() const override { return HeadOutput::kLoss; }
  // The loss and the accuracies.
  std::vector<std::string> evaluated_names() const override;
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;

 protected:
  std::vector<NeededToken> needed_tokens(const SpecialIds& ids) const override;
  std::shared_ptr<const SampleMaker> make_samples(int64_t sequence_length,
                                                  SentenceVocabulary vocabulary) const override;

 private:
  int64_t samples_at_once_;
  std::vector<int64_t> top_ks_;
};

}  // namespace megalith

// T5 as Megatron-LM trains it: spans of a text are replaced by sentinels, the encoder reads the rest, and the decoder
// writes the spans. Rows: kinds/encoder/masked_samples.h.
// Source: Raffel et al. 2020, arXiv:1910.10683, §3.1.4.
#pragma once

#include "kinds/encoder/sentence_task.h"

namespace megalith {

class T5Task : public SentenceTask {
 public:
  T5Task(const TaskOptions& options, const TaskSetup& setup);

  std::string_view name() const override { return "t5"; }
  // Data cannot be read without decoder_seq_length.
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // No-op for the data sets' rows. Other rows, such as a check's, have only the decoder's tokens: adds an encoder's.
  void draw(Batch& rows) const override;
  // The members are the decoder's; `more` has the encoder's (models/encoder_decoder.h).
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;

 protected:
  std::vector<NeededToken> needed_tokens(const SpecialIds& ids) const override;
  std::shared_ptr<const SampleMaker> make_samples(int64_t sequence_length,
                                                  SentenceVocabulary vocabulary) const override;
};

}  // namespace megalith

// What tasks on sentences have in common: they read data that were cut into sentences, and need special tokens of the
// tokenizer.
#pragma once

#include "data/sample_maker.h"
#include "data/sentence_vocabulary.h"
#include "tasks/text_task.h"

namespace megalith {

class SentenceTask : public TextTask {
 public:
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // UserError for special tokens that the tokenizer lacks.
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;

 protected:
  explicit SentenceTask(const TaskSetup& setup) : tokenizer_(setup.tokenizer), vocab_size_(setup.vocab_size) {}

  // In words, the special tokens that the task cannot do without and that are not there.
  virtual std::vector<std::string> missing_tokens(const SpecialIds& ids) const = 0;
  virtual std::unique_ptr<SampleMaker> make_samples(int64_t sequence_length, SentenceVocabulary vocabulary) const = 0;

 private:
  // Nothing when the data can be read. Mock data need no tokenizer.
  std::optional<UserError> check_tokenizer(const DataOptions& data) const;
  bool has_all_tokens() const;

  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
};

}  // namespace megalith

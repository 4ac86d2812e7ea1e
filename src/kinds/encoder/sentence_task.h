// Shared by tasks on sentences: data cut into sentences, and the tokenizer's special tokens.
#pragma once

#include <string_view>

#include "data/sample_maker.h"
#include "kinds/encoder/sentence_vocabulary.h"
#include "kinds/task_setup.h"
#include "kinds/text/text_task.h"

namespace megalith {

struct NeededToken {
  const char* name;
  bool is_there;
};

class SentenceTask : public TextTask {
 public:
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // UserError for special tokens that the tokenizer lacks.
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;

 protected:
  // stream  name of the task's random stream
  SentenceTask(const TaskOptions& options, const TaskSetup& setup, std::string_view stream);

  // Adds made-up tokens (b, s) and their lengths (b) to rows of one text of s tokens.
  void draw_second_text(Batch& rows, std::string_view tokens_field, std::string_view lengths_field) const;
  // Draw `index` for sample `sample`: a length of at least half of s.
  int64_t drawn_length(int64_t sample, int64_t index, int64_t s) const { return s - drawn(sample, index, s / 2 + 1); }

  // Special tokens required by the task.
  virtual std::vector<NeededToken> needed_tokens(const SpecialIds& ids) const = 0;
  virtual std::shared_ptr<const SampleMaker> make_samples(int64_t sequence_length,
                                                          SentenceVocabulary vocabulary) const = 0;

  const TaskOptions options_;
  const int64_t vocab_size_;
  const uint64_t key_;  // of philox()

 private:
  // One of 0 … count - 1.
  int64_t drawn(int64_t sample, int64_t index, int64_t count) const;
  std::vector<std::string> missing_tokens() const;
  // Nothing if the data can be read. Mock data need no tokenizer.
  std::optional<UserError> check_tokenizer(const DataOptions& data) const;
  bool has_all_tokens() const;

  const Tokenizer* tokenizer_;
};

// For rows of two sequences: the global number of each token (ForwardContext::row_ids), (b, s) int64 on the device, the
// first sequence's before the second's, so that all tokens have different numbers.
struct PairRowIds {
  at::Tensor first, second;
};
PairRowIds pair_row_ids(const Batch& part, std::string_view first, std::string_view second, at::Device device);

}  // namespace megalith

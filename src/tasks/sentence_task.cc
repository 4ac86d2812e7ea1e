// See sentence_task.h.
#include "tasks/sentence_task.h"

#include "core/strings.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

std::vector<UserError> SentenceTask::check(const ModelConfig& /*model*/, const DataOptions& data) const {
  std::vector<UserError> errors;
  if (data.reset_position_ids || data.reset_attention_mask || data.eod_mask_loss) {
    errors.emplace_back(
        fmt::format("reset_position_ids, reset_attention_mask and eod_mask_loss are for rows of several documents: a "
                    "row of task {} is of one",
                    name()),
        "leave them out");
  }
  if (data.has_paths()) {
    if (std::optional<UserError> error = check_tokenizer(data)) errors.push_back(std::move(*error));
  }
  return errors;
}

bool SentenceTask::has_all_tokens() const {
  return tokenizer_ != nullptr && missing_tokens(tokenizer_->special_ids()).empty();
}

std::optional<UserError> SentenceTask::check_tokenizer(const DataOptions& data) const {
  if (data.mock_data || has_all_tokens()) return std::nullopt;
  if (tokenizer_ == nullptr) {
    return UserError(
        fmt::format("task {} needs the tokenizer that the data was made with", name()),
        "name it: --tokenizer_type BertWordPieceLowerCase --vocab_file vocab.txt, or --tokenizer_model DIR");
  }
  return UserError(fmt::format("task {} needs {}, and {} has none", name(),
                               join(missing_tokens(tokenizer_->special_ids()), ", "), tokenizer_->name()),
                   "take a tokenizer that has them; --vocab_extra_ids 100 adds sentinels to BertWordPieceLowerCase and "
                   "BertWordPieceCase");
}

DataSets SentenceTask::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  if (std::optional<UserError> error = check_tokenizer(options)) throw std::move(*error);
  if (!has_all_tokens() && vocab_size_ <= 0) {
    throw UserError("mock_data needs the vocabulary size", "give --vocab_size, a model preset, or --tokenizer_model");
  }
  SentenceVocabulary vocabulary =
      has_all_tokens() ? sentence_vocabulary_of(*tokenizer_) : made_up_vocabulary(vocab_size_);
  const std::unique_ptr<SampleMaker> maker = make_samples(setup.sequence_length, std::move(vocabulary));
  return make_data_sets(options, setup, *maker, log);
}

}  // namespace megalith

// See sentence_task.h.
#include "kinds/encoder/sentence_task.h"

#include <ATen/ATen.h>

#include "core/philox.h"
#include "core/strings.h"
#include "device/transfer.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

SentenceTask::SentenceTask(const TaskOptions& options, const TaskSetup& setup, std::string_view stream)
    : options_(options),
      vocab_size_(setup.vocab_size),
      key_(make_philox_key(setup.seed, stream)),
      tokenizer_(setup.tokenizer) {}

int64_t SentenceTask::drawn(int64_t sample, int64_t index, int64_t count) const {
  const PhiloxBlock words = philox(key_, {static_cast<uint64_t>(index), static_cast<uint64_t>(sample)});
  return static_cast<int64_t>(uniform_from_word(words[0]) * static_cast<double>(count));
}

void SentenceTask::draw_second_text(Batch& rows, std::string_view tokens_field, std::string_view lengths_field) const {
  const int64_t b = rows.num_rows(), s = rows.length(field::kTokens);
  const at::Tensor tokens = at::empty({b, s}, at::kLong), lengths = at::empty({b}, at::kLong);
  const at::Tensor order = rows.at(field::kSampleIndex).contiguous();
  auto* token = tokens.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < b; ++row) {
    const int64_t sample = order.const_data_ptr<int64_t>()[row];
    for (int64_t i = 0; i < s; ++i) *token++ = drawn(sample, i, vocab_size_);
    lengths.mutable_data_ptr<int64_t>()[row] = drawn_length(sample, s, s);
  }
  rows.set(BatchField::of_tokens(tokens_field, tokens));
  rows.set(BatchField::of_rows(lengths_field, lengths));
}

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

std::vector<std::string> SentenceTask::missing_tokens() const {
  std::vector<std::string> missing;
  for (const NeededToken& token : needed_tokens(tokenizer_->special_ids())) {
    if (!token.is_there) missing.emplace_back(token.name);
  }
  return missing;
}

bool SentenceTask::has_all_tokens() const { return tokenizer_ != nullptr && missing_tokens().empty(); }

std::optional<UserError> SentenceTask::check_tokenizer(const DataOptions& data) const {
  if (data.mock_data || has_all_tokens()) return std::nullopt;
  if (tokenizer_ == nullptr) {
    return UserError(
        fmt::format("task {} needs the tokenizer that the data was made with", name()),
        "name it: --tokenizer_type BertWordPieceLowerCase --vocab_file vocab.txt, or --tokenizer_model DIR");
  }
  return UserError(
      fmt::format("task {} needs {}, and {} has none", name(), join(missing_tokens(), ", "), tokenizer_->name()),
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
  const std::shared_ptr<const SampleMaker> maker = make_samples(setup.sequence_length, std::move(vocabulary));
  return make_data_sets(options, setup, *maker, log);
}

PairRowIds pair_row_ids(const Batch& part, std::string_view first, std::string_view second, at::Device device) {
  const int64_t of_first = part.row_length(first), of_row = of_first + part.row_length(second);
  const at::Tensor begin = part.at(field::kSampleIndex).unsqueeze(1) * of_row;
  return {sent_to(begin + part.row_index(first).unsqueeze(0), device),
          sent_to(begin + of_first + part.row_index(second).unsqueeze(0), device)};
}

}  // namespace megalith

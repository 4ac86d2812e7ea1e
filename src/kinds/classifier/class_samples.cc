#include "kinds/classifier/class_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "core/error.h"
#include "data/ordered_map.h"
#include "kinds/encoder/masked_samples.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

constexpr size_t kBytesAtOnce = size_t{64} << 20;

using Ids = std::vector<int32_t>;

// A text's tokens, and the special ones around them.
struct FramedText {
  Ids before, ids, after;

  int64_t size() const { return std::ssize(before) + std::ssize(ids) + std::ssize(after); }
  void append_to(Ids& all) const {
    for (const Ids* part : {&before, &ids, &after}) all.insert(all.end(), part->begin(), part->end());
  }
};

// Divides ids that have what the tokenizer puts around the text, if the text's own are among them.
void divide(FramedText& framed, Ids text) {
  const Ids whole = std::move(framed.ids);
  const auto found = std::search(whole.begin(), whole.end(), text.begin(), text.end());
  if (found == whole.end()) {
    framed.ids = whole;
    return;
  }
  framed.before.assign(whole.begin(), found);
  framed.after.assign(found + std::ssize(text), whole.end());
  framed.ids = std::move(text);
}

std::vector<FramedText> framed_texts(const ClassRow& row, const Tokenizer& tokenizer, bool is_bert) {
  std::vector<FramedText> texts;
  for (const std::string* text : {&row.first, &row.second}) {
    if (text == &row.second && !row.is_pair) break;
    if (!is_bert) {
      texts.push_back({.before = {}, .ids = tokenizer.encode(*text, /*add_special=*/true), .after = {}});
      continue;
    }
    const SpecialIds& special = tokenizer.special_ids();
    const bool is_first = texts.empty();
    texts.push_back({.before = is_first ? Ids{*special.cls} : Ids{}, .ids = tokenizer.encode(*text),
                     .after = {*special.sep}});
  }
  return texts;
}

// Token by token from the end of the currently longest text, as transformers' longest_first.
void cut(std::vector<FramedText>& texts, int64_t surplus) {
  for (; surplus > 0; --surplus) {
    const auto longest =
        std::ranges::max_element(texts, {}, [](const FramedText& text) { return text.ids.size(); });
    if (longest->ids.empty()) break;
    longest->ids.pop_back();
  }
}

ClassSample encoded(const ClassRow& row, const Tokenizer& tokenizer, const ClassSampleOptions& options) {
  std::vector<FramedText> texts = framed_texts(row, tokenizer, options.is_bert);
  int64_t length = 0;
  for (const FramedText& text : texts) length += text.size();
  if (length > options.sequence_length) {
    if (!options.truncates) {
      throw UserError(fmt::format("{}: the row has {} tokens, and seq_length is {}", row.where, length,
                                  options.sequence_length),
                      "raise --seq_length, cut such rows with --truncate, or leave them out");
    }
    for (size_t i = 0; i < texts.size() && !options.is_bert; ++i) {
      divide(texts[i], tokenizer.encode(i == 0 ? row.first : row.second));
    }
    cut(texts, length - options.sequence_length);
  }
  ClassSample sample{.ids = {}, .num_first = texts.front().size(), .label = static_cast<float>(row.label)};
  for (const FramedText& text : texts) text.append_to(sample.ids);
  if (sample.ids.empty()) throw UserError(fmt::format("{}: the row has no token", row.where), "leave the row out");
  if (std::ssize(sample.ids) > options.sequence_length) {
    throw UserError(fmt::format("{}: seq_length {} has no room for the {} special tokens of the row", row.where,
                                options.sequence_length, sample.ids.size()),
                    "raise --seq_length");
  }
  for (const int32_t id : sample.ids) {
    if (id >= 0 && id < options.vocab_size) continue;
    throw UserError(fmt::format("{}: the row has the token id {}, but the vocabulary has {} ids", row.where, id,
                                options.vocab_size),
                    "the tokenizer is not the model's");
  }
  return sample;
}

class ClassReader final : public RowReader {
 public:
  ClassReader(std::shared_ptr<const ClassSamples> samples, int64_t begin, int64_t end, std::string name,
              ClassSampleOptions options)
      : samples_(std::move(samples)), begin_(begin), end_(end), name_(std::move(name)), options_(std::move(options)) {
    for (int64_t i = begin_; i < end_; ++i) num_tokens_ += std::ssize((*samples_)[static_cast<size_t>(i)].ids);
  }

  int64_t num_rows() const override {
    return div_up(end_ - begin_, options_.rows_at_once) * options_.rows_at_once;
  }
  std::string name() const override { return name_; }
  std::optional<DataSize> size() const override {
    return DataSize{.documents = end_ - begin_, .tokens = num_tokens_, .samples = static_cast<double>(num_rows())};
  }

  Batch read(std::span<const int64_t> rows) const override {
    const int64_t b = std::ssize(rows), s = options_.sequence_length;
    const at::Tensor tokens = at::zeros({b, s}, at::kLong), types = at::zeros({b, s}, at::kLong);
    const at::Tensor lengths = at::ones({b}, at::kLong);
    const at::Tensor labels = at::full({b}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
    for (int64_t row = 0; row < b; ++row) {
      const int64_t i = begin_ + rows[static_cast<size_t>(row)];
      if (i >= end_) continue;
      const ClassSample& sample = (*samples_)[static_cast<size_t>(i)];
      const int64_t length = std::ssize(sample.ids);
      std::ranges::copy(sample.ids, tokens.mutable_data_ptr<int64_t>() + row * s);
      types[row].slice(0, sample.num_first, length).fill_(1);
      lengths.mutable_data_ptr<int64_t>()[row] = length;
      labels.mutable_data_ptr<float>()[row] = sample.label;
    }
    Batch batch;
    batch.set(BatchField::of_tokens(field::kTokens, tokens));
    if (options_.is_bert) batch.set(BatchField::of_tokens(field::kTokenTypes, types));
    batch.set(BatchField::of_rows(field::kKeyLengths, lengths));
    batch.set(BatchField::of_rows(field::kClassLabels, labels));
    return batch;
  }

 private:
  std::shared_ptr<const ClassSamples> samples_;
  int64_t begin_, end_, num_tokens_ = 0;
  std::string name_;
  ClassSampleOptions options_;
};

}  // namespace

ClassSamples encode_class_rows(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                               const ClassSampleOptions& options) {
  const SpecialIds& special = tokenizer.special_ids();
  if (options.is_bert && (!special.cls || !special.sep)) {
    throw UserError(fmt::format("a classifier on a BERT's layers needs [CLS] and [SEP], and {} lacks them",
                                tokenizer.name()),
                    "take the BERT's own tokenizer");
  }
  struct Job {
    ClassRow row;
    ClassSample sample;
  };
  ClassSamples samples;
  const int64_t num_threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
  OrderedMap<Job> map(
      num_threads, kBytesAtOnce, [&](Job& job) { job.sample = encoded(job.row, tokenizer, options); },
      [&](Job job) { samples.push_back(std::move(job.sample)); });
  read_class_rows(paths, options.classes, [&](ClassRow row) {
    const size_t num_bytes = row.first.size() + row.second.size();
    map.give({std::move(row), {}}, num_bytes);
  });
  map.finish();
  return samples;
}

std::shared_ptr<RowReader> make_class_reader(std::shared_ptr<const ClassSamples> samples, int64_t begin, int64_t end,
                                             std::string name, const ClassSampleOptions& options) {
  return std::make_shared<ClassReader>(std::move(samples), begin, end, std::move(name), options);
}

}  // namespace megalith

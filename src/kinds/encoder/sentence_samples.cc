#include "kinds/encoder/sentence_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/checksum.h"
#include "core/error.h"
#include "data/dataset_identity.h"
#include "data/index_cache.h"

namespace megalith {
namespace {

// The sentences of some documents, in memory.
struct HeldSentences {
  std::vector<int64_t> begins;
  std::vector<int32_t> lengths;

  HeldSentences(const TokenSource& source, ElementRange documents) {
    for (int64_t i = documents.begin; i <= documents.end; ++i) begins.push_back(source.document_begin(i));
    lengths.resize(static_cast<size_t>(begins.back() - begins.front()));
    source.read_lengths(begins.front(), begins.back(), lengths.data());
  }
  DocumentSentences view() const { return {begins, lengths}; }
};

std::string where_of(const TokenSource& source, ElementRange documents, const SampleRequest& request) {
  return fmt::format("the {} split of {} (documents {} to {} of {}{})", split_name(request.split), source.name(),
                     documents.begin, documents.end, source.num_documents(),
                     request.split_text.empty() ? "" : fmt::format(", split \"{}\"", request.split_text));
}

// A text on why documents are left out.
std::string reasons_of(const LeftOut& left_out, int64_t min_sentences) {
  std::string text;
  if (left_out.too_few_sentences > 0) {
    text = fmt::format("{} of fewer than {} {}", left_out.too_few_sentences, min_sentences,
                       min_sentences == 1 ? "sentence" : "sentences");
  }
  if (left_out.long_sentence > 0) {
    text += fmt::format("{}{} with a sentence of more than {} tokens", text.empty() ? "" : " and ",
                        left_out.long_sentence, kLongSentence);
  }
  return text;
}

void check_documents(const TokenSource& source, ElementRange documents, const LeftOut& left_out,
                     const SampleRequest& request, const SentenceRules& rules, Logger& log) {
  if (documents.size() == 0) {
    throw UserError(fmt::format("{} is empty", where_of(source, documents, request)),
                    "give it a larger weight in --split, more data, or (for validation) --eval_iters 0");
  }
  const int64_t num_left_out = left_out.too_few_sentences + left_out.long_sentence;
  if (num_left_out == 0) return;
  const std::string reasons = reasons_of(left_out, rules.min_sentences);
  if (num_left_out == documents.size()) {
    throw UserError(fmt::format("{} gives no sample: {}", where_of(source, documents, request), reasons), rules.remedy);
  }
  if (!request.is_mock) {
    log.note("{} of {} documents of the {} split of {} give no sample: {}", num_left_out, documents.size(),
             split_name(request.split), source.name(), reasons);
  }
}

}  // namespace

std::vector<int64_t> read_sequence(const TokenSource& source, int64_t sequence, int64_t vocab_size) {
  std::vector<int64_t> tokens(static_cast<size_t>(source.sequence_length(sequence)));
  source.read(sequence, 0, std::ssize(tokens), tokens.data());
  for (const int64_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      throw UserError(fmt::format("{} holds the token id {}, but the vocabulary has {} ids", source.describe(sequence),
                                  token, vocab_size),
                      "the data was made with another tokenizer: prepare it again, or name its tokenizer");
    }
  }
  return tokens;
}

std::vector<int64_t> joined_sentences(std::span<const std::vector<int64_t>> sentences) {
  std::vector<int64_t> tokens;
  for (const std::vector<int64_t>& sentence : sentences) tokens.insert(tokens.end(), sentence.begin(), sentence.end());
  return tokens;
}

void RecordWriter::tokens(std::span<const int64_t> values, int64_t size, int64_t fill) {
  const auto room = static_cast<size_t>(size);
  MEGALITH_CHECK(values.size() <= room && at_ + room <= out_.size(), "{} numbers in the place of {}", values.size(),
                 size);
  const auto begin = out_.begin() + static_cast<std::ptrdiff_t>(at_);
  std::fill(std::copy(values.begin(), values.end(), begin), begin + static_cast<std::ptrdiff_t>(room), fill);
  at_ += room;
}

std::unique_ptr<SampleSource> SentenceSampleMaker::make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                                        const SampleRequest& request, Logger& log) const {
  return std::make_unique<SentenceSamples>(shared_from_this(), std::move(source), range, request, log);
}

std::shared_ptr<RowReader> SentenceSampleMaker::rows_of(std::unique_ptr<SampleSource> samples) const {
  int64_t size = 0;
  for (const RecordField& field : rules_.fields) size += field.size;
  return std::make_shared<SampleRows>(std::move(samples), size, [fields = rules_.fields](const at::Tensor& records) {
    Batch batch;
    int64_t begin = 0;
    for (const RecordField& field : fields) {
      at::Tensor part = records.narrow(1, begin, field.size).to(field.is_weight ? at::kFloat : at::kLong);
      begin += field.size;
      if (field.form == RecordField::Form::kNumber) part = part.squeeze(1);
      const bool is_sequence = field.form == RecordField::Form::kTokens;
      batch.set(is_sequence ? BatchField::of_tokens(field.name, part.contiguous())
                            : BatchField::of_rows(field.name, part.contiguous()));
    }
    return batch;
  });
}

IndexArray SentenceSampleMaker::map(const TokenSource& /*source*/, ElementRange /*range*/,
                                    const DocumentSentences& documents, const MappingOptions& options) const {
  return build_sentence_mapping(documents, rules_.short_seq_prob, options);
}

SentenceSamples::SentenceSamples(std::shared_ptr<const SentenceSampleMaker> maker,
                                 std::shared_ptr<const TokenSource> source, ElementRange documents,
                                 const SampleRequest& request, Logger& log)
    : maker_(std::move(maker)),
      source_(std::move(source)),
      seed_(request.seed),
      cache_folder_(request.cache_folder ? request.cache_folder->string() : "") {
  const SentenceRules& rules = maker_->rules();
  const HeldSentences held(*source_, documents);
  const std::string others = maker_->others(*source_, documents);
  const LeftOut left_out = count_left_out(held.view(), rules.min_sentences, rules.long_single);
  check_documents(*source_, documents, left_out, request, rules, log);
  if (!request.is_mock) {
    size_ = {documents.size(), std::accumulate(held.lengths.begin(), held.lengths.end(), int64_t{0}), std::nullopt};
  }
  OrderedJson description = megatron_description(rules.class_name, *source_, request);
  description.update(OrderedJson::parse(rules.megatron_fields));
  identity_ = dump_json(description);
  IndexCacheKey key{rules.class_name, "", {}, {"sample_index"}, {}, {}};
  if (others.empty()) key.megatron_description = identity_;
  // The same path may hold new data tomorrow.
  description["data"] = {{"documents", {documents.begin, documents.end}},
                         {"begins", checksum128(std::as_bytes(std::span(held.begins))).hex()},
                         {"lengths", checksum128(std::as_bytes(std::span(held.lengths))).hex()},
                         {"others", others}};
  key.description = description.dump(4);
  key.fits = [&](const std::vector<IndexArray>& arrays) {
    return arrays[0].columns() == rules.num_columns && arrays[0].rows() > 0 &&
           arrays[0].rows() >= request.num_samples.value_or(1);
  };
  rows_ = std::move(load_or_build_arrays(
                        request.cache_folder, key,
                        [&] {
                          std::vector<IndexArray> list;
                          list.push_back(maker_->map(*source_, documents, held.view(),
                                                     {.max_length = rules.max_length,
                                                      .min_sentences = rules.min_sentences,
                                                      .num_samples = request.num_samples,
                                                      .seed = request.seed,
                                                      .has_wide_numbers = source_->num_sequences() > UINT32_MAX}));
                          return list;
                        },
                        log)
                        .at(0));
}

void SentenceSamples::read(int64_t index, std::span<int64_t> out) const {
  NumpyRandomState random(static_cast<uint32_t>(seed_ + static_cast<uint64_t>(index)));
  RecordWriter record(out);
  maker_->write(*this, index, random, record);
}

int64_t SentenceSamples::at(int64_t index, int64_t column, int64_t least, int64_t most) const {
  MEGALITH_CHECK(index >= 0 && index < num_samples(), "sample {} of {}", index, num_samples());
  const int64_t value = rows_.at(index, column);
  if (value < least || value > most) {
    throw UserError(fmt::format("the index cache of {} is damaged (sample {})", source_->name(), index),
                    "delete the folder " + cache_folder_);
  }
  return value;
}

std::vector<std::vector<int64_t>> SentenceSamples::sentences(int64_t index) const {
  const int64_t end = at(index, 1, 1, source_->num_sequences()), begin = at(index, 0, 0, end - 1);
  std::vector<std::vector<int64_t>> sentences;
  for (int64_t i = begin; i < end; ++i) sentences.push_back(read_sequence(*source_, i, maker_->vocabulary().size));
  return sentences;
}

}  // namespace megalith

// See ict_samples.h.
#include "data/ict_samples.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/checksum.h"
#include "core/error.h"
#include "core/json.h"
#include "data/indexed_dataset.h"
#include "data/numpy_random.h"
#include "data/sentence_samples.h"

namespace megalith {
namespace {

constexpr const char* kIctClass = "ICTDataset";
constexpr int64_t kQueryFrame = 2, kTitledFrame = 3;  // [CLS] and one or two [SEP]

// A title for each document of a data set.
class Titles {
 public:
  explicit Titles(const std::string& prefix) : source_(prefix) {}

  int64_t num_documents() const { return source_.num_documents(); }
  std::string name() const { return source_.name(); }

  // In tokens, of documents [begin, end).
  std::vector<int32_t> lengths(int64_t begin, int64_t end) const {
    std::vector<int32_t> all;
    for (int64_t document = begin; document < end; ++document) {
      const int64_t first = source_.document_begin(document), last = source_.document_begin(document + 1);
      std::vector<int32_t> parts(static_cast<size_t>(last - first));
      source_.read_lengths(first, last, parts.data());
      all.push_back(std::accumulate(parts.begin(), parts.end(), int32_t{0}));
    }
    return all;
  }

  std::vector<int64_t> read(int64_t document, int64_t vocab_size) const {
    std::vector<int64_t> tokens;
    const int64_t end = source_.document_begin(document + 1);
    for (int64_t part = source_.document_begin(document); part < end; ++part) {
      std::ranges::copy(read_sequence(source_, part, vocab_size), std::back_inserter(tokens));
    }
    return tokens;
  }

 private:
  IndexedDataset source_;
};

void shorten_to(std::vector<int64_t>& tokens, int64_t most) {
  if (std::ssize(tokens) > most) tokens.resize(static_cast<size_t>(most));
}

class IctSamples final : public SentenceSamples {
 public:
  IctSamples(SentenceIndex index, const IctSampleOptions& options, std::shared_ptr<const SentenceVocabulary> vocabulary,
             std::shared_ptr<const Titles> titles, uint32_t seed)
      : SentenceSamples(std::move(index)),
        options_(options),
        vocabulary_(std::move(vocabulary)),
        titles_(std::move(titles)),
        seed_(seed) {}

  void read(int64_t index, std::span<int64_t> out) const override {
    std::vector<std::vector<int64_t>> sentences = index_.sentences(index);
    const int64_t document = index_.at(index, 2, 0, index_.source().num_documents() - 1);
    NumpyRandomState random(static_cast<uint32_t>(seed_ + static_cast<uint64_t>(index)));
    const auto chosen = static_cast<size_t>(random.integer(0, std::ssize(sentences)));
    std::vector<int64_t> question = sentences[chosen];
    const bool stays = random.random() < options_.query_in_block_prob;
    if (!stays) sentences.erase(sentences.begin() + static_cast<std::ptrdiff_t>(chosen));
    shorten_to(question, options_.sequence_length - kQueryFrame);
    const std::vector<int64_t> text = text_of(sentences, document), query = framed(question);

    RecordWriter record(out);  // in the order of ict_fields()
    record.tokens(query, options_.sequence_length, vocabulary_->pad);
    record.number(std::ssize(query));
    record.tokens(text, options_.sequence_length, vocabulary_->pad);
    record.number(std::ssize(text));
    record.number(index_.at(index, 0, 0, index_.source().num_sequences() - 1));
    record.number(index_.at(index, 1, 1, index_.source().num_sequences()));
    record.number(document);
    record.number(index_.at(index, 3, 0, INT64_MAX));
  }

 private:
  std::vector<int64_t> framed(const std::vector<int64_t>& tokens) const {
    std::vector<int64_t> all = {vocabulary_->cls};
    std::ranges::copy(tokens, std::back_inserter(all));
    all.push_back(vocabulary_->sep);
    return all;
  }

  std::vector<int64_t> text_of(const std::vector<std::vector<int64_t>>& sentences, int64_t document) const {
    const int64_t s = options_.sequence_length;
    std::vector<int64_t> block;
    for (const std::vector<int64_t>& sentence : sentences) std::ranges::copy(sentence, std::back_inserter(block));
    if (titles_ == nullptr) {
      shorten_to(block, s - kQueryFrame);
      return framed(block);
    }
    std::vector<int64_t> title = titles_->read(document, vocabulary_->size);
    shorten_to(title, s - kTitledFrame - 1);
    shorten_to(block, s - kTitledFrame - std::ssize(title));
    std::vector<int64_t> all = framed(title);
    std::ranges::copy(block, std::back_inserter(all));
    all.push_back(vocabulary_->sep);
    return all;
  }

  IctSampleOptions options_;
  std::shared_ptr<const SentenceVocabulary> vocabulary_;
  std::shared_ptr<const Titles> titles_;  // null: there are none
  uint64_t seed_;
};

class IctSampleMaker final : public SentenceSampleMaker {
 public:
  IctSampleMaker(const IctSampleOptions& options, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(std::move(vocabulary), ict_fields(options.sequence_length)), options_(options) {
    if (options.sequence_length < kTitledFrame + 2) {
      throw UserError(fmt::format("task ict with seq_length {}: [CLS], two [SEP], a title and a text do not fit",
                                  options.sequence_length),
                      "raise seq_length");
    }
    if (!options.titles.empty()) titles_ = std::make_shared<const Titles>(options.titles);
  }

  std::string_view class_name() const override { return kIctClass; }
  std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                     const SampleRequest& request, Logger& log) const override {
    std::vector<int32_t> lengths;
    if (titles_ != nullptr) {
      check_titles(*source);
      lengths = titles_->lengths(range.begin, range.end);
    }
    const SentenceRules rules{
        .class_name = kIctClass,
        .min_sentences = options_.takes_single_sentences ? 1 : 2,
        .remedy = "cut the texts into sentences with 'megalith prepare --split_sentences', or take documents of one "
                  "sentence, too: --use_one_sent_docs",
        .megatron_fields = dump_json(OrderedJson{{"query_in_block_prob", options_.query_in_block_prob},
                                                 {"use_one_sent_docs", options_.takes_single_sentences}}),
        .others = "titles " + checksum128(std::as_bytes(std::span(lengths))).hex(),
        .long_single = LongSingle::kLeftOut,
        .num_columns = 4,
        .build =
            [&](const DocumentSentences& documents, int64_t first_document, MappingOptions mapping) {
              mapping.max_length = options_.sequence_length - kTitledFrame;
              return build_block_mapping(documents, lengths, first_document, mapping);
            },
    };
    return std::make_unique<IctSamples>(SentenceIndex(std::move(source), range, request, rules, vocabulary_->size, log),
                                        options_, vocabulary_, titles_, request.seed);
  }

 private:
  void check_titles(const TokenSource& source) const {
    if (titles_->num_documents() == source.num_documents()) return;
    throw UserError(fmt::format("titles_data_path {} has {} documents, and {} has {}: each needs a title",
                                titles_->name(), titles_->num_documents(), source.name(), source.num_documents()),
                    "make both from one file: megalith prepare --split_sentences --json_keys text title");
  }

  IctSampleOptions options_;
  std::shared_ptr<const Titles> titles_;
};

}  // namespace

std::vector<RecordField> ict_fields(int64_t s) {
  using Form = RecordField::Form;
  return {{field::kQueryTokens, Form::kTokens, s},
          {field::kQueryKeyLengths, Form::kNumber, 1},
          {field::kTokens, Form::kTokens, s},
          {field::kKeyLengths, Form::kNumber, 1},
          {field::kBlock, Form::kNumbers, 4}};
}

std::unique_ptr<SampleMaker> make_ict_samples(const IctSampleOptions& options, SentenceVocabulary vocabulary) {
  return std::make_unique<IctSampleMaker>(options, std::move(vocabulary));
}

}  // namespace megalith

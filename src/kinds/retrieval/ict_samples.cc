#include "kinds/retrieval/ict_samples.h"

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
#include "kinds/encoder/sentence_samples.h"

namespace megalith {
namespace {

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

SentenceRules ict_rules(const IctSampleOptions& options) {
  using Form = RecordField::Form;
  const int64_t s = options.sequence_length;
  return {.class_name = "ICTDataset",
          .fields = {{field::kQueryTokens, Form::kTokens, s},
                     {field::kQueryKeyLengths, Form::kNumber, 1},
                     {field::kTokens, Form::kTokens, s},
                     {field::kKeyLengths, Form::kNumber, 1},
                     {field::kBlock, Form::kNumbers, 4}},
          .max_length = s - kTitledFrame,
          .min_sentences = options.takes_single_sentences ? 1 : 2,
          .remedy =
              "cut the texts into sentences with 'megalith prepare --split_sentences', or take documents of one "
              "sentence, too: --use_one_sent_docs",
          .megatron_fields = dump_json(OrderedJson{{"query_in_block_prob", options.query_in_block_prob},
                                                   {"use_one_sent_docs", options.takes_single_sentences}}),
          .long_single = LongSingle::kLeftOut,
          .num_columns = 4};
}

class IctSamples final : public SentenceSampleMaker {
 public:
  IctSamples(const IctSampleOptions& options, SentenceVocabulary vocabulary)
      : SentenceSampleMaker(ict_rules(options), std::move(vocabulary)), options_(options) {
    if (options.sequence_length < kTitledFrame + 2) {
      throw UserError(fmt::format("task ict with seq_length {}: [CLS], two [SEP], a title and a text do not fit",
                                  options.sequence_length),
                      "raise seq_length");
    }
    if (!options.titles.empty()) titles_.emplace(options.titles);
  }

  IndexArray map(const TokenSource& /*source*/, ElementRange range, const DocumentSentences& documents,
                 const MappingOptions& options) const override {
    return build_block_mapping(documents, title_lengths(range), range.begin, options);
  }
  std::string others(const TokenSource& source, ElementRange range) const override {
    if (titles_) check_titles(source);
    const std::vector<int32_t> lengths = title_lengths(range);
    return "titles " + checksum128(std::as_bytes(std::span(lengths))).hex();
  }

  void write(const SentenceSamples& samples, int64_t index, NumpyRandomState& random,
             RecordWriter& record) const override {
    std::vector<std::vector<int64_t>> sentences = samples.sentences(index);
    const TokenSource& source = samples.source();
    const int64_t document = samples.at(index, 2, 0, source.num_documents() - 1);
    const auto chosen = static_cast<size_t>(random.integer(0, std::ssize(sentences)));
    std::vector<int64_t> question = sentences[chosen];
    const bool stays = random.random() < options_.query_in_block_prob;
    if (!stays) sentences.erase(sentences.begin() + static_cast<std::ptrdiff_t>(chosen));
    shorten_to(question, options_.sequence_length - kQueryFrame);
    const std::vector<int64_t> text = text_of(sentences, document), query = framed(question);

    // In the order of the rules' fields.
    record.tokens(query, options_.sequence_length, vocabulary().pad);
    record.number(std::ssize(query));
    record.tokens(text, options_.sequence_length, vocabulary().pad);
    record.number(std::ssize(text));
    record.number(samples.at(index, 0, 0, source.num_sequences() - 1));
    record.number(samples.at(index, 1, 1, source.num_sequences()));
    record.number(document);
    record.number(samples.at(index, 3, 0, INT64_MAX));
  }

 private:
  std::vector<int64_t> framed(const std::vector<int64_t>& tokens) const {
    std::vector<int64_t> all = {vocabulary().cls};
    std::ranges::copy(tokens, std::back_inserter(all));
    all.push_back(vocabulary().sep);
    return all;
  }

  std::vector<int64_t> text_of(const std::vector<std::vector<int64_t>>& sentences, int64_t document) const {
    const int64_t s = options_.sequence_length;
    std::vector<int64_t> block = joined_sentences(sentences);
    if (!titles_) {
      shorten_to(block, s - kQueryFrame);
      return framed(block);
    }
    std::vector<int64_t> title = titles_->read(document, vocabulary().size);
    shorten_to(title, s - kTitledFrame - 1);
    shorten_to(block, s - kTitledFrame - std::ssize(title));
    std::vector<int64_t> all = framed(title);
    std::ranges::copy(block, std::back_inserter(all));
    all.push_back(vocabulary().sep);
    return all;
  }

  // Empty without titles.
  std::vector<int32_t> title_lengths(ElementRange range) const {
    return titles_ ? titles_->lengths(range.begin, range.end) : std::vector<int32_t>();
  }

  void check_titles(const TokenSource& source) const {
    if (titles_->num_documents() == source.num_documents()) return;
    throw UserError(fmt::format("titles_data_path {} has {} documents, and {} has {}: each needs a title",
                                titles_->name(), titles_->num_documents(), source.name(), source.num_documents()),
                    "make both from one file: megalith prepare --split_sentences --json_keys text title");
  }

  IctSampleOptions options_;
  std::optional<Titles> titles_;
};

}  // namespace

std::shared_ptr<const SampleMaker> make_ict_samples(const IctSampleOptions& options, SentenceVocabulary vocabulary) {
  return std::make_shared<IctSamples>(options, std::move(vocabulary));
}

}  // namespace megalith

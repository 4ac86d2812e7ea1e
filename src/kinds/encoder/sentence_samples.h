// Data sets of sentences, for BERT, T5 and ICT. Rows map samples to sentences (sentence_mapping.h), kept in the index
// cache. A kind draws a record from the sentences: one run of numbers, cut into the fields of a batch. Splits count
// documents; mock data are made-up sentences. Source: megatron/core/datasets/masked_dataset.py.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/numpy_random.h"
#include "data/sample_maker.h"
#include "kinds/encoder/sentence_mapping.h"
#include "kinds/encoder/sentence_vocabulary.h"

namespace megalith {

struct RecordField {
  enum class Form {
    kTokens,   // (b, size), along a sequence
    kNumbers,  // (b, size), never cut
    kNumber,   // (b)
  };
  std::string_view name;
  Form form = Form::kTokens;
  int64_t size = 1;
  bool is_weight = false;  // float32; else int64
};

// Writes a record's fields one after another.
class RecordWriter {
 public:
  explicit RecordWriter(std::span<int64_t> out) : out_(out) {}

  void number(int64_t value) { out_[at_++] = value; }
  // The values, padded with `fill` to `size`. InternalError if there are more.
  void tokens(std::span<const int64_t> values, int64_t size, int64_t fill);

 private:
  std::span<int64_t> out_;
  size_t at_ = 0;
};

// Rows and records of one kind of data set.
struct SentenceRules {
  std::string class_name;
  std::vector<RecordField> fields;
  int64_t max_length = 0;  // tokens of a sample, without special ones
  int64_t min_sentences = 1;
  double short_seq_prob = 0;
  std::string remedy;           // if all documents have too few sentences
  std::string megatron_fields;  // a JSON object: additions to megatron-core's description of the data set
  LongSingle long_single = LongSingle::kTaken;
  int64_t num_columns = 3;
};

class SentenceSamples;

class SentenceSampleMaker : public SampleMaker, public std::enable_shared_from_this<SentenceSampleMaker> {
 public:
  std::string_view class_name() const override { return rules_.class_name; }
  int64_t num_elements(const TokenSource& source) const override { return source.num_documents(); }
  std::unique_ptr<TokenSource> make_mock() const override { return make_mock_sentences(vocabulary_.ordinary_ids()); }
  // UserError if the documents yield no sample, with their counts.
  std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                     const SampleRequest& request, Logger& log) const override;
  std::shared_ptr<RowReader> rows_of(std::unique_ptr<SampleSource> samples) const override;

  const SentenceRules& rules() const { return rules_; }
  const SentenceVocabulary& vocabulary() const { return vocabulary_; }

  // Rows of these documents of the source: BERT's and T5's by default.
  virtual IndexArray map(const TokenSource& source, ElementRange range, const DocumentSentences& documents,
                         const MappingOptions& options) const;
  // Other inputs of the rows; if not empty, megatron-core's arrays cannot be used.
  virtual std::string others(const TokenSource& /*source*/, ElementRange /*range*/) const { return {}; }
  // Draws sample `index` and writes its fields.
  virtual void write(const SentenceSamples& samples, int64_t index, NumpyRandomState& random,
                     RecordWriter& record) const = 0;

 protected:
  SentenceSampleMaker(SentenceRules rules, SentenceVocabulary vocabulary)
      : rules_(std::move(rules)), vocabulary_(std::move(vocabulary)) {}

 private:
  const SentenceRules rules_;
  const SentenceVocabulary vocabulary_;
};

class SentenceSamples final : public SampleSource {
 public:
  SentenceSamples(std::shared_ptr<const SentenceSampleMaker> maker, std::shared_ptr<const TokenSource> source,
                  ElementRange documents, const SampleRequest& request, Logger& log);

  int64_t num_samples() const override { return rows_.rows(); }
  void read(int64_t index, std::span<int64_t> out) const override;
  std::string name() const override { return source_->name(); }
  std::string identity() const override { return identity_; }
  std::optional<DataSize> size() const override { return size_; }

  const TokenSource& source() const { return *source_; }
  // Tokens of each sentence of sample `index`. UserError for ids outside the vocabulary and damaged index files.
  std::vector<std::vector<int64_t>> sentences(int64_t index) const;
  // Column `column` of sample `index`; UserError (a damaged index file) if not in least … most.
  int64_t at(int64_t index, int64_t column, int64_t least, int64_t most) const;

 private:
  std::shared_ptr<const SentenceSampleMaker> maker_;
  std::shared_ptr<const TokenSource> source_;
  uint64_t seed_;
  std::string cache_folder_, identity_;
  std::optional<DataSize> size_;
  IndexArray rows_;
};

// Concatenates sentences.
std::vector<int64_t> joined_sentences(std::span<const std::vector<int64_t>> sentences);

// Tokens of one sequence; UserError for ids of vocab_size and above.
std::vector<int64_t> read_sequence(const TokenSource& source, int64_t sequence, int64_t vocab_size);

}  // namespace megalith

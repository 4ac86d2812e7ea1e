// What makers of samples of sentences have in common: splits count documents, and mock data are made-up sentences.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "data/record_source.h"
#include "data/sample_maker.h"
#include "data/sentence_index.h"
#include "data/sentence_vocabulary.h"

namespace megalith {

class SentenceSampleMaker : public SampleMaker {
 public:
  int64_t num_elements(const TokenSource& source) const override { return source.num_documents(); }
  std::unique_ptr<TokenSource> make_mock() const override { return make_mock_sentences(vocabulary_->ordinary_ids()); }
  std::unique_ptr<BatchSource> batches_of(std::unique_ptr<SampleSource> samples, Sampler sampler) const override {
    return std::make_unique<RecordBatchSource>(std::move(samples), std::move(sampler), fields_);
  }

 protected:
  SentenceSampleMaker(SentenceVocabulary vocabulary, std::vector<RecordField> fields)
      : vocabulary_(std::make_shared<const SentenceVocabulary>(std::move(vocabulary))), fields_(std::move(fields)) {}

  const std::shared_ptr<const SentenceVocabulary> vocabulary_;  // the samples outlive their maker

 private:
  std::vector<RecordField> fields_;
};

// A data set of samples that are drawn from the sentences of an index's rows.
class SentenceSamples : public SampleSource {
 public:
  int64_t num_samples() const override { return index_.num_samples(); }
  std::string name() const override { return index_.source().name(); }
  std::string identity() const override { return index_.identity(); }
  std::optional<DataSize> size() const override { return index_.size(); }

 protected:
  explicit SentenceSamples(SentenceIndex index) : index_(std::move(index)) {}

  const SentenceIndex index_;
};

// Writes a record's fields one behind the other.
class RecordWriter {
 public:
  explicit RecordWriter(std::span<int64_t> out) : out_(out) {}

  void number(int64_t value) { out_[at_++] = value; }
  // The values, and `fill` behind them up to `size`. InternalError when they are more.
  void tokens(std::span<const int64_t> values, int64_t size, int64_t fill);

 private:
  std::span<int64_t> out_;
  size_t at_ = 0;
};

}  // namespace megalith

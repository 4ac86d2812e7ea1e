// What data sets of sentences have in common: the rows that say which sentences a sample has (sentence_mapping.h),
// which the index cache keeps, and the reading of sentences.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/sample_maker.h"
#include "data/sentence_mapping.h"

namespace megalith {

// How one kind of data set makes its rows.
struct SentenceRules {
  std::string class_name;
  int64_t min_sentences = 1;
  // What to do when all documents have fewer.
  std::string remedy;
  std::string megatron_fields;  // what megatron-core adds to its description of the data set: a JSON object
  std::string others;           // what else the rows depend on; then megatron-core's arrays would not do
  LongSingle long_single = LongSingle::kTaken;
  int64_t num_columns = 3;
  // first_document: number of the first of them.
  std::function<IndexArray(const DocumentSentences& documents, int64_t first_document, const MappingOptions& options)>
      build;
};

class SentenceIndex {
 public:
  // UserError when the documents give no sample; says how many give none.
  SentenceIndex(std::shared_ptr<const TokenSource> source, ElementRange documents, const SampleRequest& request,
                const SentenceRules& rules, int64_t vocab_size, Logger& log);

  int64_t num_samples() const { return rows_.rows(); }
  const TokenSource& source() const { return *source_; }
  const std::string& identity() const { return identity_; }
  std::optional<DataSize> size() const { return size_; }

  // The tokens of each sentence of sample `index`. UserError for ids outside the vocabulary and damaged index files.
  std::vector<std::vector<int64_t>> sentences(int64_t index) const;
  // Column `column` of sample `index`; UserError when it is not least … most, because the index file is damaged.
  int64_t at(int64_t index, int64_t column, int64_t least, int64_t most) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t vocab_size_;
  std::string cache_folder_, identity_;
  std::optional<DataSize> size_;
  IndexArray rows_;
};

// Tokens of one sequence; UserError for ids of vocab_size and above.
std::vector<int64_t> read_sequence(const TokenSource& source, int64_t sequence, int64_t vocab_size);

}  // namespace megalith

// Source of token ids: numbered sequences, read in any order; files (indexed_dataset.h) or mock data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace megalith {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t num_sequences() const = 0;
  virtual int64_t sequence_length(int64_t sequence) const = 0;  // in tokens
  // Writes the lengths of sequences [begin, end) to out.
  virtual void read_lengths(int64_t begin, int64_t end, int32_t* out) const;
  // Writes tokens [offset, offset + count) of a sequence to out. InternalError outside the sequence.
  virtual void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const = 0;

  // Documents are runs of adjacent sequences (sentences, where texts were split).
  virtual int64_t num_documents() const { return num_sequences(); }
  // First sequence of a document; num_documents() gives the end of the last.
  virtual int64_t document_begin(int64_t document) const { return document; }

  virtual std::string name() const = 0;                      // a prefix, or "mock data"
  virtual std::string describe(int64_t sequence) const = 0;  // "data/wiki.bin, document 17": for messages
};

// Megatron's mock data: 100000 documents of 1 … 4095 tokens that count 1, 2, 3, … (modulo vocab_size) and end in eod.
std::unique_ptr<TokenSource> make_mock_source(int64_t vocab_size, int64_t eod);
// 10000 mock documents of 2 … 12 sentences of 4 … 40 tokens. Each counts through `ids` from its own start, so masked
// tokens and sentence order can be learned.
std::unique_ptr<TokenSource> make_mock_sentences(std::vector<int64_t> ids);

}  // namespace megalith

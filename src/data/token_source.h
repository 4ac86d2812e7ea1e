// Where token ids come from: numbered sequences of tokens, read in any order. Files (indexed_dataset.h) and mock data
// are of this kind.
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

  // Documents are runs of neighbouring sequences: of sentences, where texts were cut into them.
  virtual int64_t num_documents() const { return num_sequences(); }
  // The first sequence of a document; that of num_documents() is the end of the last.
  virtual int64_t document_begin(int64_t document) const { return document; }

  virtual std::string name() const = 0;                      // a prefix, or "mock data"
  virtual std::string describe(int64_t sequence) const = 0;  // "data/wiki.bin, document 17": for messages
};

// Megatron's mock data: 100000 documents of 1 … 4095 tokens that count 1, 2, 3, … (modulo vocab_size) and end in eod.
std::unique_ptr<TokenSource> make_mock_source(int64_t vocab_size, int64_t eod);
// Made-up documents of sentences: 10000 documents of 2 … 12 sentences of 4 … 40 tokens. A document counts through `ids`
// from a place of its own, so that what is hidden in it, and the order of its sentences, can be learned.
std::unique_ptr<TokenSource> make_mock_sentences(std::vector<int64_t> ids);

}  // namespace megalith

// Streams Megatron's .bin and .idx files (indexed_dataset.h) in constant memory: the .idx arrays grow on disk too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/spool_file.h"

namespace megalith {

// Appends ids as stored in .bin. InternalError for ids that do not fit the type, kUint16 or kInt32.
void append_tokens(std::span<const int32_t> ids, TokenType type, std::vector<std::byte>& bytes);

class IndexedDatasetWriter {
 public:
  struct Position {
    int64_t num_sequences = 0, num_documents = 0, num_tokens = 0;
  };

  // Both files appear at finish(); without it, nothing remains.
  IndexedDatasetWriter(std::string_view path, TokenType type);
  // Keeps the parts in {work_prefix}.bin, .lengths and .documents until finish(), so a later writer resumes at a
  // position from checkpoint(). UserError when they are shorter.
  IndexedDatasetWriter(std::string_view path, TokenType type, const std::string& work_prefix, const Position& position);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(IndexedDatasetWriter&& other) noexcept = default;

  // UserError when an id does not fit the type or a sequence has more than 2^31-1 tokens.
  void add_sequence(std::span<const int32_t> ids);
  // A sequence in this writer's type.
  void add_raw_sequence(std::span<const std::byte> bytes);
  // Ends the document of the sequences since the last call; it may be empty.
  void end_document();

  // Adds documents: tokens of their sequences in this writer's type (the first in first_tokens, unless null), sequence
  // lengths in tokens, and each document's number of sequences.
  void add_documents(SpoolFile* first_tokens, std::span<const std::byte> tokens, std::span<const int32_t> lengths,
                     std::span<const int32_t> sequences);

  // Syncs everything to disk.
  Position checkpoint();
  void finish();

  int64_t num_tokens() const { return position_.num_tokens; }
  int64_t num_documents() const { return position_.num_documents; }
  int64_t num_sequences() const { return position_.num_sequences; }

 private:
  struct Parts {
    SpoolFile bin, lengths, documents;
  };
  void count_sequence(size_t length);
  void remove_parts();

  std::string prefix_;
  TokenType type_;
  bool keeps_parts_;
  Position position_;
  std::vector<Parts> parts_;      // one, until finish()
  std::vector<std::byte> bytes_;  // reused
};

}  // namespace megalith

// Writes Megatron's .bin and .idx files (indexed_dataset.h) as the tokens come, in constant memory: the arrays of the
// .idx file grow on disk too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/spool_file.h"

namespace megalith {

// Appends ids as they lie in .bin. InternalError for ids that do not fit the type, kUint16 or kInt32.
void append_tokens(std::span<const int32_t> ids, TokenType type, std::vector<std::byte>& bytes);

class IndexedDatasetWriter {
 public:
  // How far a writer is; another one can go on from there.
  struct Position {
    int64_t num_sequences = 0, num_documents = 0, num_tokens = 0;
  };

  // Both files appear at finish(), and neither when it is not reached: what was written then goes.
  IndexedDatasetWriter(std::string_view path, TokenType type);
  // The same, but the parts lie under {work_prefix}.bin, .lengths and .documents and stay there unless finish() is
  // reached, so that a later writer takes them up at a position that checkpoint() returned. UserError when they do not
  // hold as much.
  IndexedDatasetWriter(std::string_view path, TokenType type, const std::string& work_prefix, const Position& position);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(IndexedDatasetWriter&& other) noexcept = default;

  // UserError when an id does not fit the type or a sequence has more than 2^31-1 tokens.
  void add_sequence(std::span<const int32_t> ids);
  // A sequence in the bytes of this writer's type.
  void add_raw_sequence(std::span<const std::byte> bytes);
  // Ends the document that the sequences since the last call form; it may be empty.
  void end_document();

  // Several documents at once: the tokens of all their sequences in the bytes of this writer's type (the first of them
  // in a file, where there is one), the sequences' lengths in tokens, and how many sequences each document has.
  void add_documents(SpoolFile* first_tokens, std::span<const std::byte> tokens, std::span<const int32_t> lengths,
                     std::span<const int32_t> sequences);

  // Brings everything so far to disk.
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

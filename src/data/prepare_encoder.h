// The tokenising part of `prepare`: chunks of lines to ids.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/indexed_dataset.h"
#include "data/json_texts.h"
#include "data/prepare.h"
#include "data/prepare_input.h"
#include "data/spool_file.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// How much memory a line takes at most, in multiples of its length: as prepare reads it, and where only the general
// parser of JSON does (its document has 24 bytes for "1,").
inline constexpr int64_t kLineMemory = 3, kGeneralLineMemory = 24;

// Tokens in the bytes of the output: in memory while they are few, the first of many in a file without a name.
class TokenBytes {
 public:
  // Throws SpillFailed, which is no fault of the line.
  void append(std::span<const int32_t> ids, TokenType type, const std::string& spill_prefix);
  void truncate(int64_t size);
  int64_t size() const { return std::ssize(bytes_) + (file_ ? file_->size() : 0); }
  SpoolFile* file() const { return file_.get(); }
  std::span<const std::byte> behind_file() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<SpoolFile> file_;
};

struct SpillFailed {
  UserError error;
};

// What became of a chunk.
struct EncodedChunk {
  // What one key of all documents gave, one sequence behind the other.
  struct Output {
    TokenBytes tokens;
    std::vector<int32_t> lengths;    // of the sequences, in tokens
    std::vector<int32_t> sequences;  // of each document: how many
  };
  std::unique_ptr<InputChunk> chunk;
  std::vector<Output> outputs;  // one a key
  std::vector<int64_t> lines;   // of the documents
  std::vector<int64_t> empty_lines;
  std::vector<std::pair<int64_t, std::string>> broken_lines;  // number and reason
};

// Turns the lines of chunks into the bytes that are written; what is wrong with a line becomes part of the result. Safe
// from several threads.
class ChunkEncoder {
 public:
  // type          of the outputs: kUint16 or kInt32
  // spill_prefix  what the names of files begin with that hold the tokens of long texts
  // The options outlive the encoder. UserError when append_eod is set and the tokenizer has no such token.
  ChunkEncoder(const PrepareOptions& options, std::string spill_prefix, const Tokenizer& tokenizer, TokenType type);
  void encode(EncodedChunk& result) const;

 private:
  using OnText = std::function<void(std::string_view)>;
  void add_texts(const std::function<void(const OnText&)>& for_each_text, EncodedChunk::Output& output) const;
  void encode_line(std::string_view line, int64_t number, JsonTexts& texts, EncodedChunk& result) const;
  void add_members(std::string_view line, JsonTexts& texts, EncodedChunk& result) const;
  void add_general_members(std::string_view line, EncodedChunk& result) const;

  const PrepareOptions& options_;
  std::string spill_prefix_;
  const Tokenizer& tokenizer_;
  TokenType type_;
  std::optional<int32_t> eod_;
};

}  // namespace megalith

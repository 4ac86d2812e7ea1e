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

// A line's peak memory, in multiples of its length: in prepare's reader, and in the general JSON parser (24 bytes for
// "1,").
inline constexpr int64_t kLineMemory = 3, kGeneralLineMemory = 24;

// Tokens as output bytes: in memory while few; the first of many in an unnamed file.
class TokenBytes {
 public:
  // Throws SpillFailed, which is not the line's fault.
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

struct EncodedChunk {
  // One key of all documents, sequences back to back.
  struct Output {
    TokenBytes tokens;
    std::vector<int32_t> lengths;    // of the sequences, in tokens
    std::vector<int32_t> sequences;  // in each document
  };
  std::unique_ptr<InputChunk> chunk;
  std::vector<Output> outputs;
  std::vector<int64_t> lines;  // of the documents
  std::vector<int64_t> empty_lines;
  std::vector<std::pair<int64_t, std::string>> broken_lines;
};

// Turns chunks into output bytes; faults of a line become part of the result. Thread-safe.
class ChunkEncoder {
 public:
  // type          of the outputs: kUint16 or kInt32
  // spill_prefix  path prefix of files for long texts' tokens
  // options must outlive the encoder. UserError when append_eod is set and the tokenizer has no such token.
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

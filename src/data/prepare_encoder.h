// The tokenising part of `prepare`: chunks of lines to ids, by several threads that keep the chunks' order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/indexed_dataset.h"
#include "data/json_texts.h"
#include "data/prepare_input.h"
#include "data/spool_file.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

struct EncoderOptions {
  std::vector<std::string> json_keys;
  bool append_eod = false, add_special_tokens = false;
  bool split_sentences = false, keep_newlines = false;
  std::string spill_prefix;     // what the names of files begin with that hold the tokens of long texts
  int64_t max_line_memory = 0;  // bytes that a line may take
};

// How much memory a line takes at most, in multiples of its length: as prepare reads it, and where only the general
// parser of JSON does (its document has 24 bytes for "1,").
inline constexpr int64_t kLineMemory = 3, kGeneralLineMemory = 24;

// Tokens in the bytes of the output: in memory while they are few, the first of many in a file without a name.
class TokenBytes {
 public:
  // Throws SpillFailed, which no one takes for a fault of the line.
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
  // type  of the outputs: kUint16 or kInt32
  // UserError when append_eod is set and the tokenizer has no such token.
  ChunkEncoder(EncoderOptions options, const Tokenizer& tokenizer, TokenType type);
  void encode(EncodedChunk& result) const;

 private:
  using OnText = std::function<void(std::string_view)>;
  void add_texts(const std::function<void(const OnText&)>& for_each_text, EncodedChunk::Output& output) const;
  void encode_line(std::string_view line, int64_t number, JsonTexts& texts, EncodedChunk& result) const;
  void add_members(std::string_view line, JsonTexts& texts, EncodedChunk& result) const;
  void add_general_members(std::string_view line, EncodedChunk& result) const;

  EncoderOptions options_;
  const Tokenizer& tokenizer_;
  TokenType type_;
  std::optional<int32_t> eod_;
};

// Threads that encode chunks; the caller takes them back in the order in which it gave them.
class EncoderPool {
 public:
  EncoderPool(int64_t num_threads, const ChunkEncoder& encoder);
  ~EncoderPool();
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  void give(std::unique_ptr<InputChunk> chunk);
  size_t num_pending() const { return in_order_.size(); }  // changed only by the caller's thread
  size_t pending_bytes() const { return pending_bytes_; }  // of texts
  // Waits for the oldest chunk; rethrows what its encoding threw.
  EncodedChunk take();

 private:
  struct Job {
    EncodedChunk result;
    size_t num_bytes = 0;  // of its text, when it was given
    std::exception_ptr error;
    bool is_done = false;
  };
  void run();

  const ChunkEncoder& encoder_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Job*> waiting_;
  std::deque<std::unique_ptr<Job>> in_order_;
  size_t pending_bytes_ = 0;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

}  // namespace megalith

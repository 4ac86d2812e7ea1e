// The tokenising part of `prepare`: chunks of lines to ids, by several threads that keep the chunks' order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/json_texts.h"
#include "data/prepare_input.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

struct EncoderOptions {
  std::vector<std::string> json_keys;
  bool append_eod = false, add_special_tokens = false;
  bool split_sentences = false, keep_newlines = false;
};

// What became of a chunk.
struct EncodedChunk {
  // What one key of all documents gave, one sequence behind the other.
  struct Output {
    std::vector<std::byte> tokens;   // in the bytes of the output's type
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
  // The sequences of one key of one document.
  struct Text {
    std::vector<int32_t> ids;
    std::vector<int32_t> lengths;
  };
  Text encode_texts(const std::vector<std::string_view>& texts) const;
  void encode_line(std::string_view line, int64_t number, JsonTexts& texts, EncodedChunk& result) const;
  std::vector<Text> encode_members(std::string_view line, const std::string& file, JsonTexts& texts) const;
  void add_document(int64_t line, const std::vector<Text>& texts, EncodedChunk& result) const;

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
  // Waits for the oldest chunk; rethrows what its encoding threw.
  EncodedChunk take();

 private:
  struct Job {
    EncodedChunk result;
    std::exception_ptr error;
    bool is_done = false;
  };
  void run();

  const ChunkEncoder& encoder_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Job*> waiting_;
  std::deque<std::unique_ptr<Job>> in_order_;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

}  // namespace megalith

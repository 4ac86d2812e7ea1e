// Lines to ids; see prepare_encoder.h. Source of what happens to a document: Megatron-LM's tools/preprocess_data.py.
#include "data/prepare_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/indexed_writer.h"
#include "data/sentences.h"
#include "tokenizer/utf8.h"

namespace megalith {

ChunkEncoder::ChunkEncoder(EncoderOptions options, const Tokenizer& tokenizer, TokenType type)
    : options_(std::move(options)), tokenizer_(tokenizer), type_(type) {
  MEGALITH_CHECK(type_ == TokenType::kUint16 || type_ == TokenType::kInt32, "token type {}", static_cast<int>(type_));
  if (options_.append_eod) eod_ = require_eod(tokenizer);
}

void ChunkEncoder::encode(EncodedChunk& result) const {
  const InputChunk& chunk = *result.chunk;
  result.outputs.resize(options_.json_keys.size());
  if (chunk.is_too_long) {
    result.broken_lines.emplace_back(chunk.first_line, "the line is too long to be held in memory");
    return;
  }
  if (chunk.input->is_plain_text) {
    add_document(1, {encode_texts({chunk.text})}, result);
    return;
  }
  JsonTexts texts(options_.json_keys);
  int64_t line_number = chunk.first_line;
  for (std::string_view rest = chunk.text; !rest.empty(); ++line_number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    encode_line(rest.substr(0, end), line_number, texts, result);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// The texts of one key: one, or the sentences when a line holds a list of them.
ChunkEncoder::Text ChunkEncoder::encode_texts(const std::vector<std::string_view>& texts) const {
  Text encoded;
  const auto add = [&](std::string_view text) {
    std::vector<int32_t> ids = tokenizer_.encode(text, options_.add_special_tokens);
    if (ids.empty()) return;
    if (ids.size() >= INT32_MAX) throw UserError("a text has more tokens than a sequence can hold (2^31 - 2)");
    encoded.lengths.push_back(static_cast<int32_t>(ids.size()));
    if (encoded.ids.empty()) {
      encoded.ids = std::move(ids);
    } else {
      encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    }
  };
  for (const std::string_view text : texts) {
    if (!options_.split_sentences) {
      add(text);
      continue;
    }
    // An invalid byte becomes one character, so that no sentence is cut in the middle of one.
    const std::string valid = is_valid_utf8(text) ? std::string() : replace_invalid_utf8(text);
    for (const std::string_view sentence : split_sentences(valid.empty() ? text : valid, options_.keep_newlines))
      add(sentence);
  }
  // An empty document stays empty, as in Megatron.
  if (eod_ && !encoded.ids.empty()) {
    encoded.ids.push_back(*eod_);
    ++encoded.lengths.back();
  }
  return encoded;
}

std::vector<ChunkEncoder::Text> ChunkEncoder::encode_members(std::string_view line, const std::string& file,
                                                             JsonTexts& texts) const {
  std::vector<Text> encoded;
  if (texts.read(line)) {
    for (size_t k = 0; k < options_.json_keys.size(); ++k) encoded.push_back(encode_texts({texts.text(k)}));
    return encoded;
  }
  const Json json = parse_json(line, file);
  for (const std::string& key : options_.json_keys) {
    const Json* member = find_member(json, key, "the line");
    if (member != nullptr && member->is_array()) {
      const auto sentences = json_get<std::vector<std::string>>(json, key, "the line");
      encoded.push_back(encode_texts({sentences.begin(), sentences.end()}));
    } else {
      encoded.push_back(encode_texts({json_get<std::string>(json, key, "the line")}));
    }
  }
  return encoded;
}

void ChunkEncoder::encode_line(std::string_view line, int64_t number, JsonTexts& texts, EncodedChunk& result) const {
  if (trim(line).empty()) {
    result.empty_lines.push_back(number);
    return;
  }
  const std::string file = result.chunk->input->name();
  try {
    const std::string repaired = is_valid_utf8(line) ? std::string() : replace_invalid_utf8(line);
    add_document(number, encode_members(repaired.empty() ? line : repaired, file, texts), result);
  } catch (const UserError& error) {
    // The place is reported beside it: leave the parser's own "file:1: " out.
    std::string reason = error.message();
    const std::string place = fmt::format("{}:1: ", file);
    if (reason.starts_with(place)) reason.erase(0, place.size());
    result.broken_lines.emplace_back(number, std::move(reason));
  }
}

void ChunkEncoder::add_document(int64_t line, const std::vector<Text>& texts, EncodedChunk& result) const {
  result.lines.push_back(line);
  for (size_t k = 0; k < texts.size(); ++k) {
    EncodedChunk::Output& output = result.outputs[k];
    append_tokens(texts[k].ids, type_, output.tokens);
    output.lengths.insert(output.lengths.end(), texts[k].lengths.begin(), texts[k].lengths.end());
    output.sequences.push_back(narrow<int32_t>(texts[k].lengths.size()));
  }
}

EncoderPool::EncoderPool(int64_t num_threads, const ChunkEncoder& encoder) : encoder_(encoder) {
  for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

EncoderPool::~EncoderPool() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void EncoderPool::give(std::unique_ptr<InputChunk> chunk) {
  auto job = std::make_unique<Job>();
  job->result.chunk = std::move(chunk);
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(job.get());
    in_order_.push_back(std::move(job));
  }
  work_.notify_one();
}

EncodedChunk EncoderPool::take() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return in_order_.front()->is_done; });
  const std::unique_ptr<Job> job = std::move(in_order_.front());
  in_order_.pop_front();
  if (job->error) std::rethrow_exception(job->error);
  return std::move(job->result);
}

void EncoderPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    Job& job = *waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    try {
      encoder_.encode(job.result);
    } catch (...) {
      job.error = std::current_exception();
    }
    lock.lock();
    job.is_done = true;
    done_.notify_one();
  }
}

}  // namespace megalith

// Lines to ids; see prepare_encoder.h. Source: Megatron-LM's tools/preprocess_data.py.
#include "data/prepare_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "data/indexed_writer.h"
#include "data/sentences.h"
#include "tokenizer/utf8.h"

namespace megalith {

ChunkEncoder::ChunkEncoder(const PrepareOptions& options, std::string spill_prefix, const Tokenizer& tokenizer,
                           TokenType type)
    : options_(options), spill_prefix_(std::move(spill_prefix)), tokenizer_(tokenizer), type_(type) {
  MEGALITH_CHECK(type_ == TokenType::kUint16 || type_ == TokenType::kInt32, "token type {}", static_cast<int>(type_));
  if (options_.append_eod) eod_ = require_eod(tokenizer);
}

void TokenBytes::append(std::span<const int32_t> ids, TokenType type, const std::string& spill_prefix) {
  constexpr size_t kMostInMemory = size_t{4} << 20;
  append_tokens(ids, type, bytes_);
  if (bytes_.size() <= kMostInMemory) return;
  try {
    if (!file_) {
      file_ = std::make_unique<SpoolFile>(fmt::format("{}{:x}", spill_prefix, reinterpret_cast<uintptr_t>(this)), 0);
      try_remove_tree(file_->path());  // unlinked now: gone when closed
    }
    file_->append(bytes_);
  } catch (const UserError& error) {
    throw SpillFailed{error};
  }
  bytes_.clear();
}

void TokenBytes::truncate(int64_t size) {
  const int64_t in_file = file_ ? file_->size() : 0;
  if (size < in_file) file_->truncate(size);
  bytes_.resize(static_cast<size_t>(std::max<int64_t>(size - in_file, 0)));
}

void ChunkEncoder::encode(EncodedChunk& result) const {
  const InputChunk& chunk = *result.chunk;
  result.outputs.resize(options_.json_keys.size());
  if (chunk.is_too_long) {
    const int64_t memory = options_.max_line_memory;
    result.broken_lines.emplace_back(chunk.first_line,
                                     fmt::format("the line is longer than {}, so it would take more than {} of memory",
                                                 format_bytes(memory / kLineMemory), format_bytes(memory)));
    return;
  }
  if (chunk.input->is_plain_text) {
    add_texts([&](const OnText& on_text) { on_text(chunk.text); }, result.outputs[0]);
    result.lines.push_back(1);
    return;
  }
  JsonTexts texts(options_.json_keys);
  int64_t line_number = chunk.first_line;
  for (std::string_view rest = chunk.text; !rest.empty(); ++line_number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    encode_line(rest.substr(0, end), line_number, texts, result);
    if (chunk.is_one_line) return;  // may be freed already
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// One key's texts in a document: one, or a list's sentences.
void ChunkEncoder::add_texts(const std::function<void(const OnText&)>& for_each_text,
                             EncodedChunk::Output& output) const {
  const size_t before = output.lengths.size();
  const OnText add = [&](std::string_view text) {
    int64_t count = 0;
    tokenizer_.encode_in_runs(text, options_.add_special_tokens, [&](std::span<const int32_t> ids) {
      count += std::ssize(ids);
      output.tokens.append(ids, type_, spill_prefix_);
    });
    if (count == 0) return;
    if (count >= INT32_MAX) throw UserError("a text has more tokens than a sequence can hold (2^31 - 2)");
    output.lengths.push_back(static_cast<int32_t>(count));
  };
  for_each_text([&](std::string_view text) {
    if (!options_.split_sentences) return add(text);
    // An invalid byte becomes one character, so no sentence is cut inside one.
    const std::string valid = is_valid_utf8(text) ? std::string() : replace_invalid_utf8(text);
    for_each_sentence(valid.empty() ? text : valid, options_.keep_newlines, add);
  });
  // An empty document stays empty, as in Megatron.
  if (eod_ && output.lengths.size() > before) {
    output.tokens.append({&*eod_, 1}, type_, spill_prefix_);
    ++output.lengths.back();
  }
  output.sequences.push_back(narrow<int32_t>(output.lengths.size() - before));
}

void ChunkEncoder::add_members(std::string_view line, JsonTexts& texts, EncodedChunk& result) const {
  if (!texts.read(line)) return add_general_members(line, result);
  if (result.chunk->is_one_line && texts.holds_all()) std::string().swap(result.chunk->text);
  for (size_t k = 0; k < options_.json_keys.size(); ++k) {
    add_texts([&](const OnText& on_text) { texts.for_each(k, on_text); }, result.outputs[k]);
  }
}

void ChunkEncoder::add_general_members(std::string_view line, EncodedChunk& result) const {
  if (std::ssize(line) > options_.max_line_memory / kGeneralLineMemory) {
    throw UserError(
        fmt::format("the line of {} is no plain list of members (it has a name with escapes, deep nesting, "
                    "large exponents or a mistake), and would take more than {} of memory",
                    format_bytes(std::ssize(line)), format_bytes(options_.max_line_memory)));
  }
  const Json json = parse_json(line, result.chunk->input->name());
  for (size_t k = 0; k < options_.json_keys.size(); ++k) {
    const std::string& key = options_.json_keys[k];
    const Json* member = find_member(json, key, "the line");
    const bool is_list = member != nullptr && member->is_array();
    const auto list = is_list ? json_get<std::vector<std::string>>(json, key, "the line")
                              : std::vector{json_get<std::string>(json, key, "the line")};
    add_texts([&](const OnText& on_text) { std::for_each(list.begin(), list.end(), on_text); }, result.outputs[k]);
  }
}

void ChunkEncoder::encode_line(std::string_view line, int64_t number, JsonTexts& texts, EncodedChunk& result) const {
  if (trim(line).empty()) {
    result.empty_lines.push_back(number);
    return;
  }
  struct Size {
    int64_t bytes;
    size_t lengths, sequences;
  };
  std::vector<Size> before;
  for (const EncodedChunk::Output& output : result.outputs) {
    before.push_back({output.tokens.size(), output.lengths.size(), output.sequences.size()});
  }
  try {
    if (is_valid_utf8(line)) {
      add_members(line, texts, result);
    } else {
      // Both are briefly in memory.
      if (std::ssize(line) + static_cast<int64_t>(size_with_replacements(line)) > options_.max_line_memory) {
        throw UserError(
            fmt::format("the line of {} has so many invalid bytes that it would take more than {} of memory",
                        format_bytes(std::ssize(line)), format_bytes(options_.max_line_memory)));
      }
      const std::string repaired = replace_invalid_utf8(line);
      if (result.chunk->is_one_line) std::string().swap(result.chunk->text);
      add_members(repaired, texts, result);
    }
    result.lines.push_back(number);
  } catch (const UserError& error) {
    for (size_t k = 0; k < before.size(); ++k) {
      result.outputs[k].tokens.truncate(before[k].bytes);
      result.outputs[k].lengths.resize(before[k].lengths);
      result.outputs[k].sequences.resize(before[k].sequences);
    }
    // The place is reported separately: drop the parser's "file:1: ".
    std::string reason = error.message();
    const std::string place = fmt::format("{}:1: ", result.chunk->input->name());
    if (reason.starts_with(place)) reason.erase(0, place.size());
    result.broken_lines.emplace_back(number, std::move(reason));
  }
}

}  // namespace megalith

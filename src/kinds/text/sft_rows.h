// The rows of instruction data: JSON lines, JSON lists, and columns of Parquet, Arrow and CSV files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "data/json_rows.h"
#include "data/prepare_input.h"
#include "data/sft_options.h"

namespace megalith {

// What a row holds, found by its keys.
enum class SftForm {
  kText,    // text, or the column that was asked for: all of it is learned
  kAlpaca,  // instruction (or question), input, and output (or response, answer)
  kPrompt,  // prompt and completion
  kChat,    // messages, or ShareGPT's conversations
  kPairs,   // chosen and rejected, two answers to one question, and perhaps prompt
};
std::string_view sft_form_name(SftForm form);

// One row as JSON, and its place.
struct SftLine {
  std::string file;
  int64_t number = 1;  // of the line, or of the item of a list; from 1
  std::string json;

  std::string where() const;
};

// Names under which rows give the same thing, the usual one first.
std::span<const std::string_view> sft_question_keys();  // instruction
std::span<const std::string_view> sft_answer_keys();    // output

// The first of these keys that the row has; nothing when it has none.
std::optional<std::string> sft_key_of(const OrderedJson& row, std::span<const std::string_view> keys);

// The form of a row, read of the keys. UserError, which names the keys there are, when it has those of no form.
SftForm sft_form_of(const OrderedJson& row, const std::optional<std::string>& column, const std::string& where);

// The messages of a chat row as chat templates take them; ShareGPT's names become role and content. UserError for what
// is no list of messages, an unknown speaker, and roles that are out of order: system first, then user and assistant by
// turns, with tools' answers behind the assistant.
OrderedJson sft_messages_of(const OrderedJson& row, const std::string& where);

// The two conversations of a row of pairs, as chosen and rejected: prompt, which is a text or a list of messages or not
// there, and then the messages of either. num_common: messages that both begin with, which are the question.
// Whether the answers are lists of messages; otherwise they are texts.
bool is_chat_pair(const OrderedJson& row);
// UserError as sft_messages_of(), and for answers that are the same or end with no answer.
OrderedJson sft_pair_of(const OrderedJson& row, const std::string& where);

class SftReader {
 public:
  // split  of folders: only what lies under a name that begins with this word
  // UserError for paths that do not exist and for folders without such files.
  SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
            std::optional<std::string> column);

  // The next row that is not empty; nothing at the end. UserError for files that cannot be read.
  std::optional<SftLine> next();
  const std::vector<PrepareInput>& inputs() const { return inputs_; }
  // Bytes of the inputs, as they are stored, that were taken so far.
  int64_t input_bytes() const { return bytes_before_ + (rows_ ? rows_->input_bytes() : 0); }
  // A line for each folder with files that are no rows by their names (find_inputs).
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  std::vector<std::string> skipped_;
  std::vector<PrepareInput> inputs_;
  std::optional<std::string> column_;
  size_t next_input_ = 0;
  int64_t bytes_before_ = 0;      // of the inputs that are at their ends
  std::optional<JsonRows> rows_;  // of the input before next_input_
};

}  // namespace megalith

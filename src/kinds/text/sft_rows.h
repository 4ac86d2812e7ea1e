// The rows of instruction data: JSON lines, JSON lists, and columns of Parquet, Arrow and CSV files.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/checksum.h"
#include "data/json_rows.h"
#include "data/prepare_input.h"

namespace megalith {

// The form of a row, by its keys.
enum class SftForm {
  kText,    // text, or the column asked for: all of it is learned
  kAlpaca,  // instruction (or question), input (or context), and output (or response, answer, answers)
  kPrompt,  // prompt and completion
  kChat,    // messages, or ShareGPT's conversations; prompt and completion as messages
  kPairs,   // chosen and rejected, two answers to one question, and optionally prompt
  kRated,   // a question and an answer in one of the forms above, and label (or kto_tag): the answer is good
  kTokens,  // input_ids, and optionally labels and masks
};
// All tokens of such a row may be learned.
inline bool has_questions(SftForm form) { return form != SftForm::kText && form != SftForm::kTokens; }
std::string_view sft_form_name(SftForm form);

// One row as JSON, and its location.
struct SftLine {
  std::string file;
  int64_t number = 1;  // of the line or list item; from 1
  std::string json;

  std::string where() const;
};

class SftReader {
 public:
  // paths  perhaps with a part of the rows by their numbers, of one file (sft_path.h)
  // split  of folders: only files whose name, or a folder's of theirs, begins with this word
  // UserError for paths that do not exist and for folders without such files.
  SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
            std::optional<std::string> column, bool deduplicates = false);

  // The next non-empty row, if deduplicates the next new one; nothing at the end. UserError for files that cannot be
  // read.
  std::optional<SftLine> next();
  const std::vector<PrepareInput>& inputs() const { return inputs_; }
  // "[0:1000]" for each input, "[:]" for a whole one; "" if all are read whole.
  std::string parts() const;
  // Bytes of the inputs, as stored, consumed so far.
  int64_t input_bytes() const { return bytes_before_ + (rows_ ? rows_->input_bytes() : 0); }
  // A line for each folder with files that by their names hold no rows (find_inputs).
  const std::vector<std::string>& skipped() const { return skipped_; }
  // Left out so far.
  int64_t num_repeated() const { return num_repeated_; }

 private:
  struct Part {
    int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // rows
  };

  std::optional<SftLine> next_of_all();

  std::vector<std::string> skipped_;
  bool deduplicates_;
  std::set<Checksum128> seen_;
  int64_t num_repeated_ = 0;
  std::vector<PrepareInput> inputs_;
  std::vector<Part> parts_;  // of each input
  std::optional<std::string> column_;
  size_t next_input_ = 0;
  int64_t next_row_ = 0;          // of the input before next_input_
  int64_t bytes_before_ = 0;      // of the finished inputs
  std::optional<JsonRows> rows_;  // of the input before next_input_
};

}  // namespace megalith

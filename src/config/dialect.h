// Other trainers' words as tables, files of src/config/dialects/ built into the program. docs/add_word.md tells how to
// add a word.
//
//   # a comment
//   program | option | names                    the columns
//   torchtitan | seq_length | training_seq_len
//     seq_len                                   an indented line goes on with its row
//
// Cells are separated by a bar between blanks; missing cells at the end are empty.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {

struct DialectFile {
  std::string_view name, text;
};
std::span<const DialectFile> dialect_files();

struct DialectRow {
  std::string where;  // "other_words.table:12"
  std::vector<std::string> cells;

  // Meaning of the cell's word; InternalError for an unlisted word.
  template <typename T>
  T choose(std::string_view word, std::initializer_list<std::pair<std::string_view, T>> meanings) const {
    const auto found =
        std::find_if(meanings.begin(), meanings.end(), [&](const auto& one) { return one.first == word; });
    MEGALITH_CHECK(found != meanings.end(), "{}: '{}' is no word of this column", where, word);
    return found->second;
  }
};

// Rows of a text with these columns; InternalError with the faulty line.
std::vector<DialectRow> read_dialect(const DialectFile& file, std::span<const std::string_view> columns);
// Likewise, of the file of that name.
std::vector<DialectRow> dialect_rows(std::string_view name, std::initializer_list<std::string_view> columns);

// "max_steps=-1|0": name max_steps, values -1 and 0.
std::pair<std::string, std::vector<std::string>> split_entry(const std::string& entry);

// Parsed from a cell: "lr=1e-4 lora.target_modules='[q_proj, v_proj]'".
struct SaidOption {
  std::string option, value;
};
std::vector<SaidOption> option_words(const DialectRow& row, std::string_view text);

}  // namespace megalith

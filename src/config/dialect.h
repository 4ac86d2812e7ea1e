// Other trainers' words as tables. Each is a file of src/config/dialects/ that is built into the program, so an
// installed program has no file to lose. docs/add_word.md tells how a word is added.
//
//   # a comment
//   program | option | names                    the columns
//   torchtitan | seq_length | training_seq_len
//     seq_len                                   an indented line goes on with its row
//
// A bar with blanks around it parts cells; cells missing at the end are empty.
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

  // What the cell's word means; throws InternalError for a word that is none of these.
  template <typename T>
  T choose(std::string_view word, std::initializer_list<std::pair<std::string_view, T>> meanings) const {
    const auto found =
        std::find_if(meanings.begin(), meanings.end(), [&](const auto& one) { return one.first == word; });
    MEGALITH_CHECK(found != meanings.end(), "{}: '{}' is no word of this column", where, word);
    return found->second;
  }
};

// The rows of a text, which has these columns; throws InternalError with the line that is wrong.
std::vector<DialectRow> read_dialect(const DialectFile& file, std::span<const std::string_view> columns);
// The same of the file that is called so.
std::vector<DialectRow> dialect_rows(std::string_view name, std::initializer_list<std::string_view> columns);

// "max_steps=-1|0" is the name max_steps and the values -1 and 0.
std::pair<std::string, std::vector<std::string>> split_entry(const std::string& entry);

// An option and its value, as words of a cell say them: "lr=1e-4 lora.target_modules='[q_proj, v_proj]'".
struct SaidOption {
  std::string option, value;
};
std::vector<SaidOption> option_words(const DialectRow& row, std::string_view text);

}  // namespace megalith

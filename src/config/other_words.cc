// The words of other trainers; see other_words.h.
#include "config/other_words.h"

#include <map>

#include "config/dialect.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Words = std::map<std::string, OtherWord, std::less<>>;

Words build_words() {
  Words words;
  for (const OtherWordsRow& row : other_words_rows()) {
    for (const std::string& entry : split_words(row.names)) {
      auto [name, neutral] = split_entry(entry);
      const bool is_new = words.emplace(name, OtherWord{row.program, row.option, std::move(neutral)}).second;
      MEGALITH_CHECK(is_new, "the word '{}' stands twice in the table", entry);
    }
  }
  return words;
}

}  // namespace

std::span<const OtherWordsRow> other_words_rows() {
  static const std::vector<OtherWordsRow> rows = [] {
    std::vector<OtherWordsRow> all;
    for (DialectRow& row : dialect_rows("other_words", {"program", "option", "names"})) {
      all.push_back({std::move(row.cells[0]), std::move(row.cells[1]), std::move(row.cells[2])});
    }
    return all;
  }();
  return rows;
}

const OtherWord* find_other_word(std::string_view name) {
  static const Words words = build_words();
  const auto found = words.find(fold_name(name));
  return found == words.end() ? nullptr : &found->second;
}

std::span<const OtherValuesRow> other_values_rows() {
  static const std::vector<OtherValuesRow> rows = [] {
    std::vector<OtherValuesRow> all;
    for (DialectRow& row : dialect_rows("other_values", {"option", "value", "names", "note"})) {
      all.push_back({std::move(row.cells[0]), {std::move(row.cells[1]), std::move(row.cells[3])}, row.cells[2]});
    }
    return all;
  }();
  return rows;
}

const OtherValue* find_other_value(std::string_view option, std::string_view written) {
  for (const OtherValuesRow& row : other_values_rows()) {
    if (row.option != option) continue;
    for (const std::string& name : split_words(row.names)) {
      if (name == written) return &row.value;
    }
  }
  return nullptr;
}

}  // namespace megalith

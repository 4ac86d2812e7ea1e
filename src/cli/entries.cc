#include "cli/entries.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "config/dialect.h"
#include "core/strings.h"

namespace megalith {
namespace {

bool names_option(const std::vector<std::string>& words, std::string_view option) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word.starts_with("--") && fold_name(word.substr(2, word.find('=') - 2)) == option;
  });
}

}  // namespace

std::vector<std::string> with_entry_resolved(std::vector<std::string> words) {
  if (words.size() < 2) return words;
  const std::vector<DialectRow> rows = dialect_rows("entries", {"script", "command", "options", "with_vocabulary"});
  const auto row_of = [&](const std::string& entry) {
    return std::ranges::find_if(rows, [&](const DialectRow& row) { return row.cells[0] == entry; });
  };
  // Scripts may have a path.
  const auto script_in = [](const std::string& word) {
    return word.ends_with(".py") ? std::filesystem::path(word).filename().string() : word;
  };
  // 'doctor preflight' is 'preflight'.
  if (words.size() > 2) {
    const auto second = row_of(script_in(words[2]));
    if (second != rows.end() && second->cells[1] == words[1]) words.erase(words.begin() + 1);
  }
  auto row = row_of(script_in(words[1]));
  if (row == rows.end() && words.size() > 2) {  // of two words: 'trl sft'
    row = row_of(words[1] + " " + words[2]);
    if (row != rows.end()) words.erase(words.begin() + 2);
  }
  if (row == rows.end()) return words;
  std::vector<SaidOption> said = option_words(*row, row->cells[2]);
  if (names_option(words, "vocab_file")) {
    for (SaidOption& option : option_words(*row, row->cells[3])) said.push_back(std::move(option));
  }
  words[1] = row->cells[1];
  std::vector<std::string> own;
  for (const SaidOption& option : said) own.push_back("--" + option.option + "=" + option.value);
  words.insert(words.begin() + 2, own.begin(), own.end());
  return words;
}

}  // namespace megalith

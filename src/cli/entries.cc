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
  const bool is_script = words[1].ends_with(".py");
  if (!is_script && words.size() < 3) return words;
  const std::string script =
      is_script ? std::filesystem::path(words[1]).filename().string() : words[1] + " " + words[2];
  for (const DialectRow& row : dialect_rows("entries", {"script", "command", "options", "with_vocabulary"})) {
    if (row.cells[0] != script) continue;
    std::vector<SaidOption> said = option_words(row, row.cells[2]);
    if (names_option(words, "vocab_file")) {
      for (SaidOption& option : option_words(row, row.cells[3])) said.push_back(std::move(option));
    }
    std::vector<std::string> own = {row.cells[1]};
    for (const SaidOption& option : said) own.push_back("--" + option.option + "=" + option.value);
    words.erase(words.begin() + 1, words.begin() + (is_script ? 2 : 3));
    words.insert(words.begin() + 1, own.begin(), own.end());
    break;
  }
  return words;
}

}  // namespace megalith

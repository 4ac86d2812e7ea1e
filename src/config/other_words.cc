// Other trainers' words; see other_words.h.
#include "config/other_words.h"

#include <fmt/format.h>

#include <map>

#include "config/option_value.h"
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
      const std::string_view option = row.becomes.empty() ? row.option : row.becomes[0].option;
      OtherWord word{row.program, option, std::move(neutral), row.becomes, row.note};
      const bool is_new = words.emplace(name, std::move(word)).second;
      MEGALITH_CHECK(is_new, "the word '{}' stands twice in the table", entry);
    }
  }
  return words;
}

}  // namespace

std::span<const OtherWordsRow> other_words_rows() {
  static const std::vector<OtherWordsRow> rows = [] {
    std::vector<OtherWordsRow> all;
    for (DialectRow& row : dialect_rows("other_words", {"program", "option", "names", "note"})) {
      std::vector<SaidOption> becomes;
      if (row.cells[1].find('=') != std::string::npos) becomes = option_words(row, row.cells[1]);
      all.push_back({std::move(row.cells[0]), std::move(row.cells[1]), std::move(row.cells[2]), std::move(becomes),
                     std::move(row.cells[3])});
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

const OtherWord* find_other_value(std::string_view name, std::string_view value) {
  return find_other_word(fmt::format("{}:{}", name, lower_case(trim(value))));
}

std::string said_value(const SaidOption& said, const std::string& value) {
  constexpr std::string_view kPower = "{1/x^2}";
  if (said.value == kPower) {
    const std::optional<double> number = parse_number(value);
    if (!number || *number <= 0) throw UserError(fmt::format("'{}' is no number above 0", value), "");
    return number_text(1 / (*number * *number));
  }
  const size_t place = said.value.find("{}");
  return place == std::string::npos ? said.value : std::string(said.value).replace(place, 2, value);
}

}  // namespace megalith

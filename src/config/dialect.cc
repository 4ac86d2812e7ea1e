// Reading tables of words; see dialect.h.
#include "config/dialect.h"

#include <fmt/format.h>

#include "core/strings.h"

namespace megalith {
namespace {

// A separating bar has a blank, or the text's end, on either side.
std::vector<std::string> split_cells(const std::string& text) {
  std::vector<std::string> cells;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_apart = i > 0 && text[i - 1] == ' ' && (i + 1 == text.size() || text[i + 1] == ' ');
    if (text[i] != '|' || !is_apart) continue;
    cells.emplace_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  cells.emplace_back(trim(text.substr(begin)));
  return cells;
}

}  // namespace

std::vector<DialectRow> read_dialect(const DialectFile& file, std::span<const std::string_view> columns) {
  std::vector<std::pair<std::string, std::string>> lines;  // place and text of each row
  int number = 0;
  for (size_t begin = 0, end = 0; begin < file.text.size(); begin = end + 1) {
    end = std::min(file.text.find('\n', begin), file.text.size());
    const std::string_view line = file.text.substr(begin, end - begin);
    const std::string where = fmt::format("{}.table:{}", file.name, ++number);
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with(' ')) {
      MEGALITH_CHECK(!lines.empty(), "{}: no row to go on with", where);
      lines.back().second += fmt::format(" {}", trim(line));
    } else {
      lines.emplace_back(where, line);
    }
  }
  std::vector<DialectRow> rows;
  for (auto& [where, text] : lines) {
    std::vector<std::string> cells = split_cells(text);
    MEGALITH_CHECK(cells.size() <= columns.size(), "{}: {} cells for {} columns", where, cells.size(), columns.size());
    cells.resize(columns.size());
    rows.push_back({std::move(where), std::move(cells)});
  }
  MEGALITH_CHECK(!rows.empty() && std::equal(columns.begin(), columns.end(), rows[0].cells.begin()),
                 "{}.table does not begin with its columns", file.name);
  rows.erase(rows.begin());
  return rows;
}

std::vector<DialectRow> dialect_rows(std::string_view name, std::initializer_list<std::string_view> columns) {
  for (const DialectFile& file : dialect_files()) {
    if (file.name == name) return read_dialect(file, std::span(columns.begin(), columns.size()));
  }
  throw InternalError(fmt::format("no dialect is called {}", name));
}

std::pair<std::string, std::vector<std::string>> split_entry(const std::string& entry) {
  const size_t equals = entry.find('=');
  std::vector<std::string> neutral;
  for (size_t begin = equals; begin != std::string::npos && begin < entry.size();) {
    const size_t bar = entry.find('|', begin + 1);
    neutral.push_back(entry.substr(begin + 1, bar == std::string::npos ? bar : bar - begin - 1));
    begin = bar;
  }
  return {entry.substr(0, equals), std::move(neutral)};
}

std::vector<SaidOption> option_words(const DialectRow& row, std::string_view text) {
  std::vector<SaidOption> words;
  for (text = trim(text); !text.empty(); text = trim(text)) {
    const size_t equals = text.find('=');
    const bool is_quoted = equals != std::string_view::npos && text.substr(equals).starts_with("='");
    const size_t end = std::min(text.find(is_quoted ? '\'' : ' ', is_quoted ? equals + 2 : 0), text.size());
    MEGALITH_CHECK(equals != std::string_view::npos && equals < end, "{}: '{}' gives no option a value", row.where, text);
    const size_t begin = equals + (is_quoted ? 2 : 1);
    words.push_back({std::string(text.substr(0, equals)), std::string(text.substr(begin, end - begin))});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace megalith

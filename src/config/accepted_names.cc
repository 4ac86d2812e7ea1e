// The page on other programs' names; see accepted_names.h.
#include "config/accepted_names.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "config/dialect.h"
#include "config/known_names_table.h"
#include "config/other_words.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Kind = KnownName::Kind;

std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

// "`a`, `b`"; with_values adds the neutral values: "`a` (0, null)".
std::string listed(const std::string& names, bool with_values) {
  std::vector<std::string> parts;
  for (const std::string& entry : split_words(names)) {
    const auto [name, neutral] = split_entry(entry);
    parts.push_back(with_values && !neutral.empty() ? fmt::format("`{}` ({})", name, join(neutral, ", "))
                                                    : fmt::format("`{}`", name));
  }
  return join(parts, ", ");
}

std::string rows_of(Kind kind, const char* first, const char* second) {
  std::string table = fmt::format("| {} | {} |\n|---|---|\n", first, second);
  for (const KnownNamesRow& row : known_names_rows()) {
    if (row.kind != kind) continue;
    table += fmt::format("| {} | {} |\n", cell(listed(row.names, kind != Kind::kNoEffect)), cell(row.text));
  }
  return table;
}

std::string words_table() {
  std::string table = "| whose | word | option here | note |\n|---|---|---|---|\n";
  for (const OtherWordsRow& row : other_words_rows()) {
    table += fmt::format("| {} | {} | `{}` | {} |\n", row.program, cell(listed(row.names, /*with_values=*/false)),
                         row.option, cell(row.note));
  }
  return table;
}

}  // namespace

std::string accepted_names_markdown() {
  return fmt::format(
      "# Names of other programs\n\n"
      "This page lists the names that this program knows from other trainers, beside its own [options](options.md): "
      "which option they stand for, which have no effect here, and which are refused. A name "
      "may be written with dashes or with underscores. A dotted name stands here with underscores for its dots: look "
      "for `training.steps` as `training_steps`. A name that ends in `*` stands for all names that begin with it. The "
      "page is generated from the tables in `src/config/`.\n\n"
      "## Read as an option\n\n"
      "The meaning and the unit are the same, and one line at the start says how each was read.\n\n"
      "{}\n"
      "## Without effect\n\n"
      "They are accepted, and one line at the start says why they do nothing. Such a name changes neither results, nor "
      "what decides whether a run fits into memory, nor whether it runs.\n\n"
      "{}\n"
      "## Refused, with what to write instead\n\n"
      "A value in parentheses asks for nothing and is accepted, and so is `null`.\n\n"
      "{}\n"
      "## Refused, because this program does not do it\n\n"
      "A value in parentheses asks for nothing and is accepted, and so is `null`.\n\n"
      "{}",
      words_table(), rows_of(Kind::kNoEffect, "name", "why it does nothing"),
      rows_of(Kind::kRemoved, "name", "instead"), rows_of(Kind::kUnsupported, "name", "what it asks for"));
}

}  // namespace megalith

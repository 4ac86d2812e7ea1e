// See cvs_patterns.h.
#include "compat/cvs_patterns.h"

#include <algorithm>

#include "config/dialect.h"

namespace megalith::cvs_patterns {

std::vector<CvsPhraseRow> phrases_of(std::string_view kind) {
  std::vector<CvsPhraseRow> phrases;
  for (const DialectRow& row : dialect_rows("cvs_phrases", {"kind", "phrase"})) {
    if (!row.cells[0].starts_with(kind)) continue;
    const std::string& phrase = row.cells[1];
    phrases.push_back({row.cells[0], phrase.starts_with('\'') ? phrase.substr(1, phrase.size() - 2) : phrase});
  }
  return phrases;
}

const CvsPhraseRow* first_phrase(const std::vector<CvsPhraseRow>& phrases, std::string_view text) {
  const auto found = std::find_if(phrases.begin(), phrases.end(), [&](const CvsPhraseRow& row) {
    return text.find(row.phrase) != std::string_view::npos;
  });
  return found == phrases.end() ? nullptr : &*found;
}

}  // namespace megalith::cvs_patterns

// See known_names_table.h.
#include "config/known_names_table.h"

#include "config/dialect.h"

namespace megalith {

std::span<const KnownNamesRow> known_names_rows() {
  static const std::vector<KnownNamesRow> rows = [] {
    using Kind = KnownName::Kind;
    std::vector<KnownNamesRow> all;
    for (const DialectRow& row : dialect_rows("known_names", {"kind", "form", "text", "names"})) {
      const Kind kind = row.choose<Kind>(row.cells[0], {{"no_effect", Kind::kNoEffect},
                                                        {"unsupported", Kind::kUnsupported},
                                                        {"removed", Kind::kRemoved}});
      const bool is_switch = row.choose<bool>(row.cells[1], {{"switch", true}, {"value", false}});
      all.push_back({kind, is_switch, row.cells[2], row.cells[3]});
    }
    return all;
  }();
  return rows;
}

}  // namespace megalith

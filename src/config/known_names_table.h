// Rows of dialects/known_names.table, for known_names.h.
#pragma once

#include <span>
#include <string>

#include "config/known_names.h"

namespace megalith {

struct KnownNamesRow {
  KnownName::Kind kind;
  bool is_switch;
  std::string text;
  std::string names;  // separated by blanks, as in the file
};

std::span<const KnownNamesRow> known_names_rows();

}  // namespace megalith

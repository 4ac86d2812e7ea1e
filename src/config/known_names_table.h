// The rows behind known_names.h, of dialects/known_names.table.
#pragma once

#include <span>
#include <string>

#include "config/known_names.h"

namespace megalith {

struct KnownNamesRow {
  KnownName::Kind kind;
  bool is_switch;
  std::string text;
  std::string names;  // apart by blanks, as in the file
};

std::span<const KnownNamesRow> known_names_rows();

}  // namespace megalith

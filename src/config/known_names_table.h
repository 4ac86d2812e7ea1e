// The rows behind known_names.h.
#pragma once

#include <span>

#include "config/known_names.h"

namespace megalith {

struct KnownNamesRow {
  KnownName::Kind kind;
  bool is_switch;
  const char* text;
  // Names apart by blanks; NAME=a|b lists the values that ask for nothing; PREFIX_* and MAP.* are families.
  const char* names;
};

std::span<const KnownNamesRow> known_names_rows();

}  // namespace megalith

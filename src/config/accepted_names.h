// The page on names of other programs: those that are read as options, those without effect, and those that are
// refused.
#pragma once

#include <string>

namespace megalith {

// docs/accepted_names.md, from the tables of other_words.h and known_names_table.h.
std::string accepted_names_markdown();

}  // namespace megalith

// The page on other programs' names: read as options, without effect, or refused.
#pragma once

#include <string>

namespace megalith {

// docs/accepted_names.md, from the tables of other_words.h and known_names_table.h.
std::string accepted_names_markdown();

}  // namespace megalith

// Damage: to bytes, to the values of a JSON text, to the lines of a text.
#pragma once

#include <string>
#include <vector>

#include "fuzz/target.h"

namespace megalith::fuzz {

// One to four changes of bytes: cut, overwritten, inserted, doubled, numbers at their extremes, `words` put in.
std::string damaged_bytes(std::string text, const std::vector<std::string>& words, Random& random);
// One to four changes of values: replaced by others or by odd ones, removed, repeated, renamed. A text that is no JSON
// is damaged as bytes.
std::string damaged_json(const std::string& text, const std::vector<std::string>& words, Random& random);
// One to four lines removed, repeated, moved or changed.
std::string damaged_lines(const std::string& text, const std::vector<std::string>& words, Random& random);

// All strings and names in JSON texts.
std::vector<std::string> words_of_json(const std::vector<std::string>& texts);

}  // namespace megalith::fuzz

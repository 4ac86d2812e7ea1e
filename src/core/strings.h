// Text helpers: similarity of names, joining, and human-readable numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Insertions, deletions, substitutions and swaps of neighbours from a to b (optimal string alignment; Damerau 1964).
// Cost O(|a|·|b|).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate most like `word`, ignoring case and separators; "" if none is near enough to be a typing error.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string lower_case(std::string_view text);
std::string_view trim(std::string_view text);  // blanks, tabs and line ends at both sides

// Option names compare with '-' as '_'.
std::string fold_name(std::string_view name);

// Splits at blanks, tabs and line ends.
std::vector<std::string> split_words(std::string_view text);

// Breaks at blanks into lines of at most `width` columns, unless one word is longer.
std::vector<std::string> wrap(std::string_view text, size_t width);

// Three significant digits with a decimal suffix: 950, 12.4 k, 8.03 B (k, M, B, T).
std::string format_count(double value);
// Three significant digits with a binary suffix: 512 B, 38.2 GiB.
std::string format_bytes(int64_t bytes);
// The two largest units: 0.83 s, 45 s, 3 m 12 s, 3 h 12 m, 2 d 4 h.
std::string format_duration(double seconds);

}  // namespace megalith

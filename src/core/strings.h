// Text helpers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Optimal string alignment (insert, delete, substitute, swap neighbours; Damerau 1964). O(|a|·|b|).
size_t edit_distance(std::string_view a, std::string_view b);

// Ignores case and separators; "" if none is near enough.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string lower_case(std::string_view text);
std::string_view trim(std::string_view text);  // blanks, tabs, line ends

// '-' becomes '_'.
std::string fold_name(std::string_view name);

// At blanks, tabs and line ends.
std::vector<std::string> split_words(std::string_view text);

// Lines of at most `width` columns, except for longer words.
std::vector<std::string> wrap(std::string_view text, size_t width);

// 950, 12.4 k, 8.03 B.
std::string format_count(double value);
// 512 B, 38.2 GiB.
std::string format_bytes(int64_t bytes);
// 0.83 s, 45 s, 3 m 12 s, 2 d 4 h.
std::string format_duration(double seconds);

}  // namespace megalith

// Results on standard output. A file or pipe receives every byte; on a terminal, control characters are made visible
// (core/visible_text.h), including colours in other people's texts.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace megalith {

void print_text(std::string_view text);
// A text with our colours; the rest must already be visible text.
void print_coloured(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith

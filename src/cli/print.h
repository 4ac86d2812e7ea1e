// Results, on standard output. A file or a pipe receives every byte as it is; on a terminal, what it would obey is
// written out (core/visible_text.h), colours in texts of others as well.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace megalith {

void print_text(std::string_view text);
// A text with colours of ours: whatever else it holds was made visible before they were added.
void print_coloured(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith

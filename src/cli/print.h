// Results, on standard output. A file or a pipe receives every byte as it is; on a terminal, what it would obey in
// texts of others is written out (core/visible_text.h). Our own colours stay.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace megalith {

void print_text(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith

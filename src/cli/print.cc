// See print.h.
#include "cli/print.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "core/visible_text.h"

namespace megalith {

void print_text(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 1) return print_coloured(visible_text(text));
  print_coloured(text);
}

void print_coloured(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace megalith

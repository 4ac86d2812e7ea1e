// Results on standard output; see print.h.
#include "cli/print.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "core/visible_text.h"

namespace megalith {

void print_text(std::string_view text) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  const std::string shown = is_terminal ? visible_text(text, Colours::kKept) : std::string();
  const std::string_view bytes = is_terminal ? std::string_view(shown) : text;
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

}  // namespace megalith

// Communication failures in our words, without the libraries' source files and call stacks.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

struct BackEndFault {
  std::string cause;   // one line: "the connection to 10.0.0.2 port 4711 was closed at its other end"
  std::string remedy;  // one line

  // "\n  cause: …\n  …", to append.
  std::string text() const;
};

// A message not in the table becomes the cause, by its first line.
BackEndFault translate_back_end_error(std::string_view message);

}  // namespace megalith

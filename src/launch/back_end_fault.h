// Communication failures in our words: the libraries' messages (c10d, Gloo, NCCL) come with source files, call stacks
// and advice for their developers.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

struct BackEndFault {
  std::string cause;   // one line: "the connection to 10.0.0.2 port 4711 was closed at its other end"
  std::string remedy;  // one line

  // "\n  cause: …\n  …", to append to what failed.
  std::string text() const;
};

// message  as thrown; if the table lacks it, its bare first line is the cause
BackEndFault translate_back_end_error(std::string_view message);

}  // namespace megalith

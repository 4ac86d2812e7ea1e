// What the libraries below us (c10d and its store, Gloo, NCCL) and the system say when communication fails, in our
// words: theirs come with source files, call stacks and advice for their own developers.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

struct BackEndFault {
  std::string cause;   // what happened, on one line: "the connection to 10.0.0.2 port 4711 was closed at its other end"
  std::string remedy;  // what to do about it, on one line

  // "\n  cause: …\n  …", to be put behind what failed.
  std::string text() const;
};

// `message` as it was thrown. When it is not in the table, its first line is the cause, without source files, greetings
// and advice.
BackEndFault translate_back_end_error(std::string_view message);

}  // namespace megalith

// A sink that prints lines, and what it has printed.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "metrics/console.h"

namespace megalith::test {

// Sink: constructed from the arguments and then a LineWriter.
template <typename Sink>
struct Printed {
  template <typename... Arguments>
  explicit Printed(Arguments&&... arguments)
      : sink(std::forward<Arguments>(arguments)..., [this](std::string_view line) { text += line; }) {}
  Printed(const Printed&) = delete;  // the writer holds this place
  Printed& operator=(const Printed&) = delete;

  std::string take() { return std::exchange(text, ""); }

  std::string text;
  Sink sink;
};

}  // namespace megalith::test

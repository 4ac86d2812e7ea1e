// A picture or page rewritten during a run. A failed write is only a warning: the next may succeed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace megalith {

class Logger;

// Monotonic; tests pass their own.
using SecondsClock = std::function<double()>;
double steady_seconds();

class DrawnFile {
 public:
  // option: "page_file".
  DrawnFile(std::filesystem::path path, std::string option, Logger& log, SecondsClock clock = steady_seconds);

  // Atomic. Reports only the first failure.
  void write(const std::function<std::string()>& render);
  double since_written_s() const { return clock_() - written_at_s_; }
  bool was_written() const { return was_written_; }  // or attempted

 private:
  std::filesystem::path path_;
  std::string option_;
  Logger& log_;
  SecondsClock clock_;
  double written_at_s_;
  bool was_written_ = false, has_warned_ = false;
};

}  // namespace megalith

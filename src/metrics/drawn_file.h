// A picture or a page of a run, written again and again while the run goes on. When one cannot be written there is only
// a warning: the run and its other records go on, and the next attempt may succeed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace megalith {

class Logger;

// Seconds from any moment on, never backwards; given by tests.
using SecondsClock = std::function<double()>;
double steady_seconds();

class DrawnFile {
 public:
  // option  whose file it is: "page_file"
  DrawnFile(std::filesystem::path path, std::string option, Logger& log, SecondsClock clock = steady_seconds);

  // Writes the file whole or not at all. Only the first failure of the run is reported.
  void write(const std::function<std::string()>& render);
  // Since the last attempt, or since construction.
  double since_written_s() const { return clock_() - written_at_s_; }
  bool was_written() const { return was_written_; }  // or tried

 private:
  std::filesystem::path path_;
  std::string option_;
  Logger& log_;
  SecondsClock clock_;
  double written_at_s_;
  bool was_written_ = false, has_warned_ = false;
};

}  // namespace megalith

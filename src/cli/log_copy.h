// log_file: a copy of standard error and of the training lines on standard output. Each line is appended by one write,
// so a run's ranks may share the file. A terminal's status line, rewritten in place, is left out.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "core/log.h"

namespace megalith {

class LogCopy {
 public:
  LogCopy() = default;
  ~LogCopy();
  LogCopy(const LogCopy&) = delete;
  LogCopy& operator=(const LogCopy&) = delete;

  // For the program's logger, which this object outlives: standard error, and the file once open.
  LoggerSettings settings();
  // empties: truncates the file. UserError if it cannot be opened.
  void open(const std::string& path, bool empties);
  bool is_open() const { return fd_ >= 0; }
  // To the file only; no-op before it is open. Failed writes cost one warning.
  void write(std::string_view text);

 private:
  int fd_ = -1;
  std::atomic<bool> has_warned_{false};
};

}  // namespace megalith

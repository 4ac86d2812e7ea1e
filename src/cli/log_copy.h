// log_file: what the program says on standard error, and the lines of training on standard output, again in a file.
// Lines are appended each with one write, so the ranks of a run may share the file. The status line of a terminal,
// which is rewritten in place, stays out.
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

  // For the program's logger, which this object outlives: standard error, and the file once it is open.
  LoggerSettings settings();
  // UserError when the file cannot be opened. empties: what it holds is dropped.
  void open(const std::string& path, bool empties);
  bool is_open() const { return fd_ >= 0; }
  // To the file only; nothing before it is open. What cannot be written costs one warning.
  void write(std::string_view text);

 private:
  int fd_ = -1;
  std::atomic<bool> has_warned_{false};
};

}  // namespace megalith

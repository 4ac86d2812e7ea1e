// The logger. Diagnostics go to standard error, results to standard output.
//
//   debug, warn, error   every rank; with several, lines start [rank 5 dp1 tp1 pp0]
//   info, note           rank 0; a note says once that a value may surprise
//
// A line is one write, so threads never mix. Control characters are escaped.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/time.h"

namespace megalith {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kSilent };

struct LoggerSettings {
  LogLevel level = LogLevel::kInfo;  // drops lower levels
  int rank = 0;
  int world_size = 1;
  std::string coordinates;  // "dp1 tp1 pp0", for the prefix; may be empty
  // Receives whole lines. Standard error if empty.
  std::function<void(std::string_view)> write;
  // Allows rewriting lines. Default: true if standard error is one and `write` is empty.
  std::optional<bool> is_terminal;
};

class Logger {
 public:
  explicit Logger(LoggerSettings settings = {});
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kDebug)) write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kInfo)) write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kInfo)) write_note(fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kWarning)) write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kError)) write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }

  // Lines from rank 0, verbatim.
  void block(std::string_view text);

  // Not while other threads log.
  void set_rank(int rank, int world_size, std::string coordinates = "");
  void set_level(LogLevel level) { settings_.level = level; }

  bool enabled(LogLevel level) const;
  bool is_terminal() const { return is_terminal_; }
  // "[rank 5 dp1 tp1 pp0] "; "" for a single rank.
  std::string prefix() const;

  // The terminal's bottom line; "" removes it. Elsewhere does nothing.
  void set_status(std::string_view line);

 private:
  void write(LogLevel level, std::string_view message);
  void write_note(const std::string& message);
  void write_locked(std::string_view text);

  LoggerSettings settings_;
  bool is_terminal_ = false;
  std::mutex mutex_;
  std::string status_;
  std::set<std::string> notes_;
};

struct ProgressSettings {
  bool enabled = true;
  double line_every_s = 10;     // without a terminal
  double redraw_every_s = 0.1;  // on a terminal
};

// Shows progress on rank 0:
//
//   prepare: 12.4 k of 36.0 k documents (34 %), 4.1 k documents/s, ETA 6 s
//
// advance() is thread-safe and costs an atomic addition and a look at the clock.
class Progress {
 public:
  // total  units; 0 if unknown: no percentage, no ETA
  Progress(Logger& log, std::string title, int64_t total, std::string unit, ProgressSettings settings = {});
  ~Progress();  // removes the status line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t amount = 1) { show_if_due(done_.fetch_add(amount, std::memory_order_relaxed) + amount); }
  void set(int64_t done);
  std::string line() const;
  // Removes the status line; without a terminal, repeats the last if any was shown.
  void finish();

  int64_t done() const { return done_.load(std::memory_order_relaxed); }
  double elapsed_s() const { return watch_.elapsed_s(); }

 private:
  void show_if_due(int64_t done);

  Logger& log_;
  std::string title_, unit_;
  int64_t total_;
  ProgressSettings settings_;
  Stopwatch watch_;
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> next_show_ms_;
  std::mutex mutex_;
  bool has_shown_ = false, is_finished_ = false;
};

}  // namespace megalith

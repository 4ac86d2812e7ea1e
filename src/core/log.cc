#include "core/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/strings.h"
#include "core/visible_text.h"

namespace megalith {
namespace {

void write_to_stderr(std::string_view text) {
  // Not stdio: one call per line keeps ranks' lines whole.
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return;  // nowhere to complain
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string_view level_word(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    default:
      return "";
  }
}

constexpr std::string_view kEraseLine = "\r\x1b[K";

}  // namespace

Logger::Logger(LoggerSettings settings) : settings_(std::move(settings)) {
  is_terminal_ = settings_.is_terminal.value_or(!settings_.write && stderr_is_terminal());
  if (!settings_.write) settings_.write = write_to_stderr;
}

void Logger::set_rank(int rank, int world_size, std::string coordinates) {
  settings_.rank = rank;
  settings_.world_size = world_size;
  settings_.coordinates = std::move(coordinates);
}

bool Logger::enabled(LogLevel level) const {
  if (level < settings_.level) return false;
  return level != LogLevel::kInfo || settings_.rank == 0;
}

std::string Logger::prefix() const {
  if (settings_.world_size <= 1) return "";
  return fmt::format("[rank {}{}{}] ", settings_.rank, settings_.coordinates.empty() ? "" : " ", settings_.coordinates);
}

void Logger::write(LogLevel level, std::string_view message) {
  // Only rank 0 writes info.
  const std::string speaker = level == LogLevel::kInfo ? "" : prefix();
  const std::string text = fmt::format("{}{}{}\n", speaker, level_word(level), visible_text(message));
  std::lock_guard lock(mutex_);
  write_locked(text);
}

void Logger::write_note(const std::string& message) {
  std::lock_guard lock(mutex_);
  if (notes_.insert(message).second) write_locked("note: " + visible_text(message) + "\n");
}

void Logger::block(std::string_view text) {
  if (!enabled(LogLevel::kInfo) || text.empty()) return;
  std::string whole = visible_text(text);
  if (whole.back() != '\n') whole += '\n';
  std::lock_guard lock(mutex_);
  write_locked(whole);
}

void Logger::write_locked(std::string_view text) {
  if (status_.empty()) {
    settings_.write(text);
  } else {
    settings_.write(fmt::format("{}{}{}", kEraseLine, text, status_));
  }
}

void Logger::set_status(std::string_view line) {
  if (!is_terminal_) return;
  std::lock_guard lock(mutex_);
  if (line.empty() && status_.empty()) return;
  status_ = visible_text(line);
  settings_.write(fmt::format("{}{}", kEraseLine, status_));
}

Progress::Progress(Logger& log, std::string title, int64_t total, std::string unit, ProgressSettings settings)
    : log_(log), title_(std::move(title)), unit_(std::move(unit)), total_(total), settings_(settings) {
  if (!log_.enabled(LogLevel::kInfo)) settings_.enabled = false;
  const double first_s = log_.is_terminal() ? settings_.redraw_every_s : settings_.line_every_s;
  next_show_ms_ = static_cast<int64_t>(first_s * 1e3);
}

Progress::~Progress() {
  if (settings_.enabled && !is_finished_) log_.set_status("");
}

void Progress::set(int64_t done) {
  done_.store(done, std::memory_order_relaxed);
  show_if_due(done);
}

void Progress::show_if_due(int64_t done) {
  if (!settings_.enabled) return;
  const auto now_ms = static_cast<int64_t>(watch_.elapsed_ms());
  int64_t due_ms = next_show_ms_.load(std::memory_order_relaxed);
  if (now_ms < due_ms) return;
  const double every_s = log_.is_terminal() ? settings_.redraw_every_s : settings_.line_every_s;
  // One thread shows; others continue.
  if (!next_show_ms_.compare_exchange_strong(due_ms, now_ms + static_cast<int64_t>(every_s * 1e3))) return;
  std::lock_guard lock(mutex_);
  if (is_finished_) return;
  has_shown_ = true;
  if (log_.is_terminal()) {
    log_.set_status(line());
  } else {
    log_.info("{}", line());
  }
}

std::string Progress::line() const {
  const int64_t done = this->done();
  const double elapsed_s = watch_.elapsed_s();
  const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0;
  std::string text = fmt::format("{}: {}", title_, format_count(static_cast<double>(done)));
  if (total_ > 0) {
    text += fmt::format(" of {} {} ({:.0f} %)", format_count(static_cast<double>(total_)), unit_,
                        100.0 * static_cast<double>(std::min(done, total_)) / static_cast<double>(total_));
  } else {
    text += " " + unit_;
  }
  if (rate > 0) {
    text += fmt::format(", {} {}/s", format_count(rate), unit_);
    if (total_ > 0) {
      text += ", ETA " + format_duration(static_cast<double>(std::max<int64_t>(total_ - done, 0)) / rate);
    }
  }
  return text;
}

void Progress::finish() {
  if (!settings_.enabled) return;
  std::lock_guard lock(mutex_);
  if (is_finished_) return;
  is_finished_ = true;
  log_.set_status("");
  if (has_shown_ && !log_.is_terminal()) log_.info("{}", line());
}

}  // namespace megalith

#include "cli/log_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace megalith {
namespace {

constexpr std::string_view kEraseStatus = "\r\x1b[K";

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = retry_interrupted([&] { return ::write(fd, text.data(), text.size()); });
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool is_smart_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

// Whole lines, without cursor control.
std::string lines_of(std::string_view text) {
  std::string lines(text);
  for (size_t at = lines.find(kEraseStatus); at != std::string::npos; at = lines.find(kEraseStatus, at)) {
    lines.erase(at, kEraseStatus.size());
  }
  lines.resize(lines.rfind('\n') + 1);  // npos + 1 is 0: only a status line
  return lines;
}

}  // namespace

LogCopy::~LogCopy() { close_descriptor(fd_); }

LoggerSettings LogCopy::settings() {
  LoggerSettings settings;
  settings.write = [this](std::string_view text) {
    (void)write_all(STDERR_FILENO, text);  // nowhere left to report a failure
    write(text);
  };
  settings.is_terminal = is_smart_terminal();
  return settings;
}

void LogCopy::open(const std::string& path, bool empties) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) make_directories(folder);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (empties ? O_TRUNC : 0);
  fd_ = retry_interrupted([&] { return ::open(path.c_str(), flags, 0644); });
  if (fd_ < 0) {
    throw UserError(fmt::format("log_file {}: {}", path, system_error_text(errno)), "name a file that can be written");
  }
}

void LogCopy::write(std::string_view text) {
  if (fd_ < 0 || write_all(fd_, lines_of(text)) || has_warned_.exchange(true)) return;
  (void)write_all(STDERR_FILENO, fmt::format("warning: log_file: {}; this is said once\n", system_error_text(errno)));
}

}  // namespace megalith

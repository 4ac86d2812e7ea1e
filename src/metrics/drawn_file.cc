#include "metrics/drawn_file.h"

#include <chrono>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace megalith {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

DrawnFile::DrawnFile(std::filesystem::path path, std::string option, Logger& log, SecondsClock clock)
    : path_(std::move(path)),
      option_(std::move(option)),
      log_(log),
      clock_(std::move(clock)),
      written_at_s_(clock_()) {}

void DrawnFile::write(const std::function<std::string()>& render) {
  std::string reason;
  try {
    write_file_atomic(path_, render());
  } catch (const UserError& error) {
    reason = error.message();
  } catch (const std::exception& error) {  // such as bad_alloc
    reason = error.what();
  }
  if (!reason.empty() && !has_warned_) {
    log_.warn("{}: {}; the run goes on without it, and this is said once", option_, reason);
    has_warned_ = true;
  }
  was_written_ = true;
  written_at_s_ = clock_();
}

}  // namespace megalith

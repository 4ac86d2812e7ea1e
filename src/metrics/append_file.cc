#include "metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/system_call.h"

namespace megalith {

AppendFile::AppendFile(std::filesystem::path path, std::string option, Open open, Logger& log)
    : path_(std::move(path)), option_(std::move(option)), log_(log) {
  if (path_.has_parent_path()) make_directories(path_.parent_path());
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (open == Open::kCreateNew ? O_EXCL : 0);
  fd_ = retry_interrupted([&] { return ::open(path_.c_str(), flags, 0644); });
  if (fd_ < 0) {
    throw UserError(fmt::format("{} {}: {}", option_, path_.string(), system_error_text(errno)),
                    "name a place that can be written");
  }
}

AppendFile::~AppendFile() { close_descriptor(fd_); }

void AppendFile::append(std::string_view record, std::string_view what) {
  ssize_t written = 0, result = 1;
  while (result > 0 && written < static_cast<ssize_t>(record.size())) {
    const std::string_view rest = record.substr(static_cast<size_t>(written));
    result = retry_interrupted([&] { return ::write(fd_, rest.data(), rest.size()); });
    if (result > 0) written += result;
  }
  if (written == static_cast<ssize_t>(record.size())) return;

  const std::string reason = result < 0 ? system_error_text(errno) : "only a part of it fits";
  if (written > 0) {
    // The next record must not continue it.
    struct stat status {};
    if (::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode) &&
        retry_interrupted([&] { return ::ftruncate(fd_, status.st_size - written); }) != 0) {
      log_.debug("{} {}: {}", option_, path_.string(), system_error_text(errno));
    }
  }
  if (!has_warned_) log_.warn("{} {}: {} was not written: {}", option_, path_.string(), what, reason);
  has_warned_ = true;
}

}  // namespace megalith

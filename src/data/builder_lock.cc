// flock on a file; see builder_lock.h.
#include "data/builder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/file.h"
#include "core/system_call.h"

namespace megalith {

BuilderLock::BuilderLock(std::filesystem::path path, const std::function<void()>& on_wait) : path_(std::move(path)) {
  bool has_waited = false;
  while (true) {
    fd_ = retry_interrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (fd_ < 0) return;
    int result = retry_interrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); });
    if (result != 0 && errno == EWOULDBLOCK) {
      if (on_wait && !std::exchange(has_waited, true)) on_wait();
      result = retry_interrupted([&] { return ::flock(fd_, LOCK_EX); });
    }
    // The last holder removes the file; a lock on a removed file excludes no one, so try again.
    struct stat held {
    }, named{};
    if (result != 0 || (::fstat(fd_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
                        held.st_dev == named.st_dev)) {
      return;
    }
    close_descriptor(fd_);
  }
}

BuilderLock::~BuilderLock() {
  if (fd_ < 0) return;
  try_remove_tree(path_);
  close_descriptor(fd_);
}

}  // namespace megalith

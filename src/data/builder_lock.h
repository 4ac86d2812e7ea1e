// One builder at a time of files that several processes need.
#pragma once

#include <filesystem>
#include <functional>

namespace megalith {

// Exclusive over processes and threads; the file exists while held. Without file system locks there is no waiting: the
// work is repeated, with the same result.
class BuilderLock {
 public:
  // on_wait  called once if another builder holds it
  explicit BuilderLock(std::filesystem::path path, const std::function<void()>& on_wait = {});
  ~BuilderLock();
  BuilderLock(const BuilderLock&) = delete;
  BuilderLock& operator=(const BuilderLock&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace megalith

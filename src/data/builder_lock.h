// One builder at a time of files that several processes need.
#pragma once

#include <filesystem>
#include <functional>

namespace megalith {

// Held by one builder of the same files at a time, over processes and threads; the file of that path exists meanwhile.
// Where the file system knows no locks nobody waits: the work is then done more than once, with the same result.
class BuilderLock {
 public:
  // on_wait  called once when another builder has it
  explicit BuilderLock(std::filesystem::path path, const std::function<void()>& on_wait = {});
  ~BuilderLock();
  BuilderLock(const BuilderLock&) = delete;
  BuilderLock& operator=(const BuilderLock&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace megalith

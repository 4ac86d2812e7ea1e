// Lets one system call on files fail, in this process: which one, and with what error, a test says. The functions of
// libc that crash_points.cc defines ask here before they call the real ones.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace megalith::test {

struct Fault {
  std::filesystem::path root;  // absolute; calls on paths below it count
  int number = 0;              // of the failing call, from 0
  int error_number = 0;
  bool is_lasting = false;   // later calls that need room fail too, as on a disk that stays full; removing goes on
  bool can_exchange = true;  // otherwise the file system refuses to exchange two folders in one step, as NFS does
};

// The fault is possible while this lives; one at a time.
class Faults {
 public:
  explicit Faults(Fault fault);
  ~Faults();
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  bool has_struck() const;
  std::string call() const;  // that failed: "fsync iter_0000010/model.safetensors"
};

bool is_faulty();
bool faulty_disk_can_exchange();
// Counts the call; true, with errno set, when it is to fail. Names: create, open, read, pread, write, writev, pwrite,
// ftruncate, fsync, fdatasync, close, rename, unlink, unlinkat, rmdir, remove, mkdir.
bool strike(std::string_view name, const std::filesystem::path& path);

}  // namespace megalith::test

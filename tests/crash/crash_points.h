// Ends a process at one of the changes it makes on disk, and takes back what was not flushed by then.
//
// The test program defines the functions of libc that change files (write, fsync, rename, …) itself: they count what
// happens below one folder, keep a model of what a power cut would leave, and call the real ones. So a crash point is a
// system call, wherever it is made, std::filesystem included. A change that went past them is found: the model is
// compared with the disk at every crash.
//
// What a flush promises is taken as POSIX says it: fsync of a file keeps its bytes, and not its name; fsync of a folder
// keeps the names in it. Source of the idea: Pillai et al. 2014, "All File Systems Are Not Created Equal" (ALICE).
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace megalith::test {

// State lost with the process.
enum class Loss {
  kNothing,             // a killed process: all that it has done stays
  kUnsyncedBytes,       // names stay, files have the bytes of their last fsync
  kZeroedBytes,         // the same, but files have their new length, filled with zeros
  kUnsyncedNames,       // bytes stay, folders have the names of their last fsync
  kEverythingUnsynced,  // both
  kSomethingUnsynced,   // of the changed names and files some, drawn by `number` and `seed`
};

struct CrashPoint {
  std::filesystem::path root;  // absolute; changes below it count
  int number = 0;              // of the change, from 0
  bool is_after = false;       // of it; otherwise before it is made
  Loss loss = Loss::kNothing;
  int seed = 0;
  bool can_exchange = true;  // otherwise the file system refuses to exchange two folders in one step, as NFS does
};

struct Crash {
  bool is_complete = false;  // there is no such change: the body ended, and then came the loss
  std::string change;        // "fsync iter_0000020/model.safetensors"
  std::string failure;       // an error of the test itself; "" as it should be
};

// Runs the body in a child process up to the crash point; when it returns, the folder is as the crash left it. To be
// called while this process has one thread. The child does not wait for the disk.
Crash crash_at(const CrashPoint& point, const std::function<void()>& body);

// While it lives, flushing takes no time in this process: what it does between two crashes needs no disk.
class WithoutFlushes {
 public:
  WithoutFlushes();
  ~WithoutFlushes();
  WithoutFlushes(const WithoutFlushes&) = delete;
  WithoutFlushes& operator=(const WithoutFlushes&) = delete;
};

}  // namespace megalith::test

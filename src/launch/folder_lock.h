// One run at a time in a folder, also where several machines share it.
//
// lock.json in the folder says who holds it: host, process, run, and a number that the holder raises every few seconds.
// O_EXCL makes the file, which network file systems keep where they lose flock. A holder on this machine is looked for
// by its process. One elsewhere counts as dead when its number stands still for as long as a starter watches it: no
// clock of one machine is compared with another's.
//
// A dead holder is succeeded exactly once. The holder of a folder is the end of a chain: lock.json, then
// lock-after-ID.json of the holder ID before it. Who found the end dead makes the next file by O_EXCL, looks whether it
// is the end now, and renames its file to lock.json. Who comes late makes a file that no holder leads to, and drops it.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/host.h"
#include "launch/rank_process.h"

namespace megalith {

struct FolderHolder {
  std::string run_id;  // letters, digits and dashes; "unreadable" for a file that is damaged or being written
  std::string host, process, since;
  std::string meeting;  // where the ranks of its run meet; empty in a world of one

  std::string text() const;  // "run 20260131-080128-3fa9 of host node7 (process 4711), since …"
};

// Nothing when no run holds the folder, or none has left its lock there.
std::optional<FolderHolder> find_holder(const std::filesystem::path& folder);

struct FolderLockSettings {
  FolderHolder self;
  double beat_s = 5;       // between two numbers
  double patience_s = 30;  // how long the number of a dead holder stands still
  bool waits = false;      // for the end of a holder that lives
  // Gets a line when another holder is found and waited for, and when a dead one is succeeded.
  std::function<void(const std::string&)> note = [](const std::string&) {};
  std::function<void()> before_sleep = [] {};  // may throw, which ends the wait
  // On a thread of the lock: another run holds the folder, because this one stood still for longer than its patience.
  std::function<void(const FolderHolder&)> on_lost = [](const FolderHolder&) {};
};

// What this process says of itself.
FolderHolder own_holder(std::string run_id, std::string meeting, std::string since);

class FolderLock {
 public:
  // Makes the folder if it is missing. what: "save runs/a", for messages. UserError when another run holds the folder
  // and this one does not wait, and when the file cannot be made.
  FolderLock(std::filesystem::path folder, std::string what, FolderLockSettings settings);
  // Gives the folder back, and removes it if the lock made it and it is empty.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void take();
  bool try_make(const std::filesystem::path& path);
  void drop(const std::filesystem::path& path);
  void write();
  void beat();
  void remove_made_folders();

  std::filesystem::path folder_;
  std::string what_;
  FolderLockSettings settings_;
  std::vector<std::filesystem::path> made_folders_;  // the deepest first
  int fd_ = -1;
  int64_t num_beats_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace megalith

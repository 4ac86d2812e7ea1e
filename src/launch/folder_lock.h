// One run at a time per folder, also across machines.
//
// lock.json names the holder: host, process, run, and a number incremented every few seconds. O_EXCL creates it, also
// on network file systems where flock fails. A holder here is checked by its process; one elsewhere is dead if its
// number stands still while watched (clocks are never compared).
//
// A dead holder has exactly one successor. Holders form a chain: lock.json, then lock-after-ID.json by the successor of
// holder ID. A run that finds the end dead creates the next file with O_EXCL, checks that it is now the end, and
// renames it to lock.json; a latecomer's file, on no chain, is dropped.
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
  std::string run_id;  // letters, digits, dashes; "unreadable" if damaged or being written
  std::string host, process, since;
  std::string meeting;  // where its ranks meet; empty for one rank

  std::string text() const;  // "run 20260131-080128-3fa9 of host node7 (process 4711), since …"
};

// Null if unlocked.
std::optional<FolderHolder> find_holder(const std::filesystem::path& folder);

struct FolderLockSettings {
  FolderHolder self;
  double beat_s = 5;       // between increments
  double patience_s = 30;  // a number unchanged this long: dead
  bool waits = false;      // for a live holder
  // Receives a line when waiting begins or a dead holder is succeeded.
  std::function<void(const std::string&)> note = [](const std::string&) {};
  std::function<void()> before_sleep = [] {};  // may throw to end the wait
  // Called on the lock's thread when another run took the folder after a long pause here.
  std::function<void(const FolderHolder&)> on_lost = [](const FolderHolder&) {};
};

FolderHolder own_holder(std::string run_id, std::string meeting, std::string since);

class FolderLock {
 public:
  // Creates the folder if missing. what: "save runs/a". UserError if held and not waiting, or if the file cannot be
  // created.
  FolderLock(std::filesystem::path folder, std::string what, FolderLockSettings settings);
  // Also removes the folder if created here and empty.
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
  std::vector<std::filesystem::path> made_folders_;  // deepest first
  int fd_ = -1;
  int64_t num_beats_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace megalith

// One run at a time per folder, also across machines.
//
// lock.json names the holder: host, process, run, and a number that it increments every few seconds. O_EXCL creates it,
// which works on network file systems where flock does not. A holder on this machine is checked by its process; one
// elsewhere is dead if its number does not change while a starter watches: clocks are never compared.
//
// A dead holder is succeeded exactly once. Holders form a chain: lock.json, then lock-after-ID.json of the successor of
// holder ID. A run that finds the chain's end dead creates the next file with O_EXCL, checks that it is now the end,
// and renames it to lock.json; a latecomer's file is on no chain, and is dropped.
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
  std::string meeting;  // where its ranks meet; empty in a world of one

  std::string text() const;  // "run 20260131-080128-3fa9 of host node7 (process 4711), since …"
};

// Nothing when no run holds the folder or its lock is elsewhere.
std::optional<FolderHolder> find_holder(const std::filesystem::path& folder);

struct FolderLockSettings {
  FolderHolder self;
  double beat_s = 5;       // between increments
  double patience_s = 30;  // of an unchanged number, after which its holder is dead
  bool waits = false;      // for a live holder's end
  // Receives a line when waiting for another holder begins, and when a dead one is succeeded.
  std::function<void(const std::string&)> note = [](const std::string&) {};
  std::function<void()> before_sleep = [] {};  // may throw to end the wait
  // Called on the lock's thread when another run has taken the folder, because this one paused beyond its patience.
  std::function<void(const FolderHolder&)> on_lost = [](const FolderHolder&) {};
};

// This process's entry.
FolderHolder own_holder(std::string run_id, std::string meeting, std::string since);

class FolderLock {
 public:
  // Creates the folder if missing. what: "save runs/a", for messages. UserError when another run holds the folder and
  // this one does not wait, or when the file cannot be created.
  FolderLock(std::filesystem::path folder, std::string what, FolderLockSettings settings);
  // Releases the folder, and removes it if the lock created it and it is empty.
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

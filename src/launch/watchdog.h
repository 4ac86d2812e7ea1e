// A rank's watchdog thread: when the rank waits too long in a collective, it asks all ranks for their states and
// reports.
//
//   1  It looks at the CollectiveLog four times a second, ignoring time in which the process was suspended.
//   2  After the time-out it writes "hang" to the ranks' board (c10d's store), which every watchdog checks once a
//      second and answers with its rank's state.
//   3  The rank that wrote it collects answers for at most answer_patience_s, publishes who is at fault
//      (hang_report.h), and prints a line for every rank; others print that verdict and their own state.
//   4  Ranks waiting for one that ended, or recorded its failure, say so after seconds. A rank whose connection breaks
//      reports first; while ranks connect, and on GPUs, none may break.
//   5  on_hang(message) is called once, on this thread; it must exit, as the main thread is stuck.
//
// Rank 0, which serves the board, may be stopped: every use has a time limit, after which the report names it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective_log.h"

namespace megalith {

// Entries visible to all ranks. Functions throw if the board is gone, and may never return while its server is stopped.
// Not thread-safe.
class SharedBoard {
 public:
  virtual ~SharedBoard() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns the value now: `value` or an earlier one.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

// Keys shared with broken groups (c10d_world.cc).
inline constexpr const char* kFirstFailure = "first_failure";
std::string lost_contact_of(int rank);

struct WatchdogSettings {
  int rank = 0, world_size = 1;
  double timeout_s = 600;
  int server_rank = -1;  // the board's; -1: the launcher
  // Called once, with who is at fault and the ranks' states.
  std::function<void(const std::string& message)> on_hang;
  // Ended as far as this machine can tell. May be empty.
  std::function<std::vector<int>()> ended_ranks;
  // For a collective with an ended rank to break by itself.
  double break_patience_s = 3;
  // The collecting rank's for answers, and any rank's for the board.
  double answer_patience_s = 2.5, board_patience_s = 2;
  double look_every_s = 0.25, board_every_s = 1;
  bool stays = false;  // on_hang does not end the process: no rank reads the board of one that leaves
};

// True once a collective was waited in beyond the time-out, ignoring gaps of seconds between calls.
class HangDetector {
 public:
  explicit HangDetector(double timeout_s) : timeout_s_(timeout_s) {}
  void set_timeout(double timeout_s) { timeout_s_ = timeout_s; }
  bool observe(double now_s, const std::optional<CollectiveLog::Waiting>& waiting);

 private:
  double timeout_s_;
  std::optional<double> last_s_;
  double awake_s_ = 0, since_s_ = 0;
  std::optional<int64_t> serial_;
};

// True once a rank has waited this long in a collective known not to end.
class VainWait {
 public:
  explicit VainWait(double patience_s) : patience_s_(patience_s) {}
  bool observe(double now_s, const std::optional<CollectiveLog::Waiting>& waiting, bool has_reason);

 private:
  double patience_s_;
  std::optional<int64_t> serial_;
  double since_s_ = 0;
};

class PatientBoard;

class Watchdog {
 public:
  Watchdog(std::shared_ptr<CollectiveLog> log, std::shared_ptr<SharedBoard> board, WatchdogSettings settings);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Blocks until the thread, and any report, has ended. Idempotent; from any thread but on_hang's.
  void stop();

  // on_hang is, or was, about to be called. Reporting ranks exit, which breaks others' collectives.
  bool is_speaking() const { return is_speaking_.load(); }
  // For collectives from now on, and those under way.
  void set_timeout(double timeout_s) { timeout_s_.store(timeout_s); }
  // The main thread knows why its collective broke, and reports itself.
  void stand_back() { stands_back_.store(true); }
  // The last reason on the board, or empty. For a collective that broke after the board went, whose server may only
  // have followed the first to fail.
  std::string known_reason() const;
  // Reports now, beginning with `why` ("all_reduce … broke").
  void raise(const std::string& why);

 private:
  void run();
  // At most a tick; false when stopping.
  bool sleep();
  void look_for_word();
  void speak(const std::string& why);
  // Reason why the collective will not end: the first left, or ended ranks; else empty.
  std::string find_reason();
  void give_up(const std::string& reason);
  std::string collect(const RankStatus& own);
  std::string listen(const RankStatus& own, const std::string& first);
  // The serving rank leaves after these, still reading: each marks its departure, or ends.
  void wait_for_departures(std::vector<int> ranks, std::string (*mark_of)(int rank));
  std::string text_without_board(const RankStatus& own, bool is_gone) const;

  std::shared_ptr<CollectiveLog> log_;
  std::unique_ptr<PatientBoard> board_;
  WatchdogSettings settings_;
  HangDetector detector_;
  VainWait vain_wait_;
  std::atomic<double> timeout_s_;
  std::atomic<bool> is_speaking_{false}, stands_back_{false};
  std::shared_ptr<std::atomic<bool>> has_seen_word_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  std::mutex joining_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::string raised_, known_reason_;
  std::thread thread_;
};

}  // namespace megalith

// A rank's watchdog thread: when the rank waits too long in a collective, it asks all ranks for their state and
// reports, so that runs do not hang silently.
//
//   1  It looks at the rank's CollectiveLog four times a second, ignoring time in which the process was suspended.
//   2  When a wait exceeds the time-out it writes "hang" to the ranks' board (c10d's store), which every watchdog
//      checks once a second and answers with its rank's state.
//   3  The rank that wrote it collects answers for at most answer_patience_s, and publishes who is at fault
//      (hang_report.h). It prints a line for every rank; the others that verdict and their own state.
//   4  Ranks waiting for one that has ended, or recorded why it failed, say so after a few seconds. Where a connection
//      breaks, the rank that used it reports first; while ranks connect, and on GPUs, none may break.
//   5  on_hang(message) is called once, on this thread. The program prints the message and exits: the main thread is
//      stuck in the collective.
//
// Rank 0, which serves the board, may be stopped, so every use has a time limit, after which the report names that
// rank.
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

// Entries visible to all ranks. Functions throw when the board is gone, and may not return while its server is stopped.
// One thread at a time.
class SharedBoard {
 public:
  virtual ~SharedBoard() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns the resulting value: `value` or an earlier one.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

// Keys also used by groups whose collectives broke (c10d_world.cc): why the run fails, and that a rank ends because it
// lost another.
inline constexpr const char* kFirstFailure = "first_failure";
std::string lost_contact_of(int rank);

struct WatchdogSettings {
  int rank = 0, world_size = 1;
  double timeout_s = 600;
  int server_rank = -1;  // serves the board; -1: the launcher
  // Called once, when any rank hangs: who is at fault, and the ranks' states.
  std::function<void(const std::string& message)> on_hang;
  // Ranks whose processes have ended, as far as this machine can tell. May be empty.
  std::function<std::vector<int>()> ended_ranks;
  // Time for a collective with an ended rank to break by itself.
  double break_patience_s = 3;
  // The collecting rank's wait for answers, and any wait for the board.
  double answer_patience_s = 2.5, board_patience_s = 2;
  // Intervals of looking at the rank and at the board.
  double look_every_s = 0.25, board_every_s = 1;
};

// True when one collective has been waited in beyond the time-out, by a clock that runs only while observe() is called
// a few times a second.
class HangDetector {
 public:
  explicit HangDetector(double timeout_s) : timeout_s_(timeout_s) {}
  bool observe(double now_s, const std::optional<CollectiveLog::Waiting>& waiting);

 private:
  double timeout_s_;
  std::optional<double> last_s_;
  double awake_s_ = 0, since_s_ = 0;
  std::optional<int64_t> serial_;
};

// True when a rank has waited this long in one collective since it became known that it cannot end.
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

  // Returns when the thread has ended, after any report. Idempotent.
  void stop();

  // For a thread whose collective broke: reporting ranks exit, which breaks connections. True: on_hang is, or was,
  // about to be called.
  bool is_speaking() const { return is_speaking_.load(); }
  // The main thread knows why its collective broke, and reports itself.
  void stand_back() { stands_back_.store(true); }
  // The last reason on the board why a collective will not end, or empty. For a thread whose collective broke after the
  // board went: its server may only have followed the first to fail.
  std::string known_reason() const;
  // Reports now, beginning with `why` ("all_reduce … broke").
  void raise(const std::string& why);

 private:
  void run();
  // Waits a tick or less; false when stopping.
  bool sleep();
  void look_for_word();
  void speak(const std::string& why);
  // Why this rank's collective will not end: the first reason left, or the ended ranks; else empty.
  std::string find_reason();
  void give_up(const std::string& reason);
  std::string collect(const RankStatus& own);
  std::string listen(const RankStatus& own, const std::string& first);
  // The serving rank leaves after these ranks, which still read: each marks its departure, or ends.
  void wait_for_departures(std::vector<int> ranks, std::string (*mark_of)(int rank));
  std::string text_without_board(const RankStatus& own, bool is_gone) const;

  std::shared_ptr<CollectiveLog> log_;
  std::unique_ptr<PatientBoard> board_;
  WatchdogSettings settings_;
  HangDetector detector_;
  VainWait vain_wait_;
  std::atomic<bool> is_speaking_{false}, stands_back_{false};
  std::shared_ptr<std::atomic<bool>> has_seen_word_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::string raised_, known_reason_;
  std::thread thread_;
};

}  // namespace megalith

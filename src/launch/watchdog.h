// The watchdog of a rank: a thread that notices when the rank waits too long in a collective, asks all ranks what they
// do, and reports it, so that a run does not hang until somebody looks.
//
//   1  Four times a second it looks at the rank's CollectiveLog. Time in which this process itself did not run (the
//      whole job was suspended) does not count.
//   2  When the wait is longer than the time-out it leaves the word "hang" on the board that all ranks share (c10d's
//      store). Every watchdog looks for that word once a second, and answers with its rank's state.
//   3  The rank that left the word collects the answers for at most answer_patience_s, finds who is at fault
//      (hang_report.h) and publishes that. It prints a line for every rank; the others print who is at fault and their
//      own state.
//   4  A rank whose process has ended, or that has left the reason why it failed, does not come any more: whoever waits
//      says so after a few seconds instead of at the time-out. Where a connection breaks, the rank that used it
//      says so first; while the ranks connect, and on GPUs, none may break.
//   5  on_hang(message) is called once, on this thread. The program prints the message and leaves the process: the main
//      thread is stuck in the collective.
//
// The board itself may not answer: rank 0 serves it, and may be the rank that was stopped. So every use of the board
// has a time limit, and when that is over the report names the rank that serves the board.
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

// Words that all ranks see. Functions throw when the board is gone; while its server is stopped they need not return.
// One thread uses it at a time.
class SharedBoard {
 public:
  virtual ~SharedBoard() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // What is there afterwards: `value`, or what was there before.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

// Keys on the board that groups whose collectives broke use too (c10d_world.cc): the reason why the run fails, and that
// a rank ends because it lost another one.
inline constexpr const char* kFirstFailure = "first_failure";
std::string lost_contact_of(int rank);

struct WatchdogSettings {
  int rank = 0, world_size = 1;
  double timeout_s = 600;
  int server_rank = -1;  // of the rank that serves the board; -1: the launcher does
  // Called once, when this rank or another one hangs: who is at fault, and what the ranks do.
  std::function<void(const std::string& message)> on_hang;
  // The ranks whose processes have ended, as far as this machine can tell. Empty: nobody looks for them.
  std::function<std::vector<int>()> ended_ranks;
  // How long a collective in which somebody has ended may still break by itself.
  double break_patience_s = 3;
  // The rank that collects waits so long for the others' answers, and whoever asks the board for its reply.
  double answer_patience_s = 2.5, board_patience_s = 2;
  // How often it looks at its rank, and at the board.
  double look_every_s = 0.25, board_every_s = 1;
};

// Whether one collective has been waited in for longer than the time-out, by a clock that counts only while somebody
// looks: observe() is called a few times a second.
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

// Whether a rank has waited this long in one collective since a reason was known why it will not end.
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
  ~Watchdog();  // stops
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Returns when the thread has ended; if it speaks, when it has spoken. May be called again.
  void stop();

  // For a thread whose collective broke: other ranks leave the process when they have spoken, and connections break
  // then. True: on_hang is about to be called, or was.
  bool is_speaking() const { return is_speaking_.load(); }
  // The rank's main thread knows why its collective broke, and says so itself.
  void stand_back() { stands_back_.store(true); }
  // The last reason that was found on the board why a collective will not end; empty without one. For a thread whose
  // collective broke when the board is gone: whoever served it may only have followed the first to fail.
  std::string known_reason() const;
  // Speaks now: `why` ("all_reduce … broke") begins the message.
  void raise(const std::string& why);

 private:
  void run();
  // Waits for a tick or less; false when it is time to stop.
  bool sleep();
  void look_for_word();
  void speak(const std::string& why);
  // Why what this rank waits in will not end: the first reason that was left, or who has ended; empty without either.
  std::string find_reason();
  void give_up(const std::string& reason);
  std::string collect(const RankStatus& own);
  std::string listen(const RankStatus& own, const std::string& first);
  // Whoever serves the board leaves after these ranks, which read there: each leaves a mark before it goes, or ends.
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

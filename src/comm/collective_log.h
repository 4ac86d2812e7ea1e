// One rank's collectives, for the watchdog: the last finished, and those the rank waits in. All groups share the log,
// at the cost of a small allocation and a lock.
//
// * CPU: a rank waits while a thread is issuing or in wait(). Others in flight do not count: Gloo completes sends and
//   receives only in wait().
// * Accelerator: wait() returns at once, so a collective counts until the device has passed it.
//
// Holds no tensor and no Work, only weak pointers and WorkState::completion()'s results.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"

namespace megalith {

struct CollectiveStatus {
  std::string text;
  std::string content;     // kind and label, equal on the group's ranks
  std::string group;       // "dp/0": axis and first member
  int64_t sequence = 0;    // CollectiveRecord's
  int64_t ordinal = -1;    // index among the whole group's, from 0; -1 for sends and receives
  std::vector<int> ranks;  // world ranks
  double age_s = 0;        // of the wait, or since the end
};

struct RankStatus {
  int rank = 0;
  std::optional<CollectiveStatus> waiting, last_finished;
  int64_t num_under_way = 0;              // not known to be finished
  double quiet_s = 0;                     // since the last issue, wait or end
  std::map<std::string, int64_t> issued;  // by group, of the whole group
};

struct LoggedCollective {
  std::shared_ptr<const CollectiveRecord> record;
  std::shared_ptr<const std::vector<int>> ranks;
  int64_t serial = 0, ordinal = -1;
  double issued_s = 0, waiting_since_s = 0, finished_s = 0;
  bool is_issuing = true;
  int num_waiting = 0;
  std::weak_ptr<WorkState> state;
  std::function<bool()> completion;  // WorkState::completion()'s
};

class CollectiveLog {
 public:
  using Clock = std::function<double()>;  // seconds
  using Ticket = std::shared_ptr<LoggedCollective>;

  //   is_accelerator  holds the groups' tensors
  //   clock           for tests; default: the steady clock
  explicit CollectiveLog(int rank, bool is_accelerator = false, Clock clock = {});

  // Called on the issuing or waiting thread. ranks: participants' world ranks, ascending; a group's members pass one
  // pointer each time.
  Ticket begin(std::shared_ptr<const CollectiveRecord> record, std::shared_ptr<const std::vector<int>> ranks);
  void issued(const Ticket& ticket, const std::shared_ptr<WorkState>& state);
  void begin_wait(const Ticket& ticket);
  void end_wait(const Ticket& ticket, std::function<bool()> completion);
  void failed(const Ticket& ticket);

  struct Waiting {
    int64_t serial = 0;  // unique per rank
    double age_s = 0;
  };
  // Also drops finished collectives.
  std::optional<Waiting> longest_waiting();
  RankStatus status();

 private:
  double now() const { return clock_(); }
  void finish_locked(const Ticket& ticket);
  // Moves out what must be released after the lock.
  void poll_locked(std::vector<std::shared_ptr<WorkState>>& released);
  Ticket longest_waiting_locked() const;
  bool is_waiting(const LoggedCollective& collective) const;
  double since_s(const LoggedCollective& collective) const;

  const int rank_;
  const bool is_accelerator_;
  const Clock clock_;
  std::mutex mutex_;
  int64_t next_serial_ = 0;
  std::vector<Ticket> unfinished_;
  Ticket last_finished_;
  std::map<std::string, int64_t> issued_;
  double last_event_s_;
  size_t poll_at_;  // bounds a log never read
};

// Logs the time in wait(); without end(), an exception.
class LoggedWait {
 public:
  LoggedWait(CollectiveLog& log, CollectiveLog::Ticket ticket) : log_(log), ticket_(std::move(ticket)) {
    log_.begin_wait(ticket_);
  }
  ~LoggedWait() {
    if (ticket_) log_.failed(ticket_);
  }
  LoggedWait(const LoggedWait&) = delete;
  LoggedWait& operator=(const LoggedWait&) = delete;
  void end(std::function<bool()> completion) {
    log_.end_wait(ticket_, std::move(completion));
    ticket_ = nullptr;
  }

 private:
  CollectiveLog& log_;
  CollectiveLog::Ticket ticket_;
};

}  // namespace megalith

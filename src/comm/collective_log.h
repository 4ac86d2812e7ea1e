// The state of one rank's collectives, for the watchdog: which finished last, and which the rank waits in. All groups
// of the rank share one log, kept by Group and Work, at the cost of a small allocation and a few words under a lock.
//
// Waiting depends on the device:
// * CPU: a thread is issuing the collective or inside wait(). One in flight without a waiter is no trouble yet, and
// Gloo
//   learns of the end of sends and receives only in wait().
// * accelerator: wait() returns at once on the host, so a collective counts from issue until the device has passed it.
//
// The log holds no tensor and no Work: only weak pointers, and WorkState::completion()'s result.
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
  std::string text;        // "all_reduce dp grad bucket 0 12.0 KiB"
  std::string content;     // kind and label, on which the group's ranks agree
  std::string group;       // "dp/0": axis and first member, the same on all its ranks
  int64_t sequence = 0;    // CollectiveRecord's
  int64_t ordinal = -1;    // counts collectives of the whole group, from 0; -1 for sends and receives
  std::vector<int> ranks;  // world ranks that take part
  double age_s = 0;        // since the rank began to wait in it, or since it finished
};

struct RankStatus {
  int rank = 0;
  std::optional<CollectiveStatus> waiting, last_finished;
  int64_t num_under_way = 0;              // issued and not known to be finished
  double quiet_s = 0;                     // since the last issue, wait or end of a collective
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
  std::function<bool()> completion;  // see WorkState::completion()
};

class CollectiveLog {
 public:
  using Clock = std::function<double()>;  // seconds from any moment
  using Ticket = std::shared_ptr<LoggedCollective>;

  // rank            in the world
  // is_accelerator  where the groups' tensors are; see above
  // clock           the steady clock unless a test brings its own
  explicit CollectiveLog(int rank, bool is_accelerator = false, Clock clock = {});

  // Called by Group and Work, on the thread that issues or waits. ranks: ascending world ranks that take part; members
  // of a group pass the same pointer each time.
  Ticket begin(std::shared_ptr<const CollectiveRecord> record, std::shared_ptr<const std::vector<int>> ranks);
  void issued(const Ticket& ticket, const std::shared_ptr<WorkState>& state);
  void begin_wait(const Ticket& ticket);
  void end_wait(const Ticket& ticket, std::function<bool()> completion);
  void failed(const Ticket& ticket);

  struct Waiting {
    int64_t serial = 0;  // unique per rank
    double age_s = 0;
  };
  // The collective that the rank has waited in longest. Also drops what has finished.
  std::optional<Waiting> longest_waiting();
  RankStatus status();

 private:
  double now() const { return clock_(); }
  void finish_locked(const Ticket& ticket);
  // What the polled works kept alive is released after the lock.
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
  size_t poll_at_;  // bounds a log that is never read, with Works that are never waited for
};

// Logs the time inside wait(); destruction without end() means an exception.
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

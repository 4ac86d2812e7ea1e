// What the collectives of one rank are doing at this moment, for the watchdog: which one finished last, and which one
// the rank waits in. All groups of the rank share one log; Group and Work keep it. A collective costs it a small
// allocation and a few words under a lock.
//
// What waiting means depends on where the results come from:
// * CPU: a thread is inside issuing the collective or inside wait(). One that is under way with nobody waiting for it
//   is no trouble yet, and Gloo learns of the end of sends and receives only in wait().
// * accelerator: wait() returns at once on the host, so every collective counts from when it was issued until the
//   device has passed it.
//
// The log holds no tensor and no Work: only weak pointers, and what WorkState::completion() gives.
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

// One collective as the other ranks are told of it.
struct CollectiveStatus {
  std::string text;        // "all_reduce dp grad bucket 0 12.0 KiB"
  std::string content;     // kind and label: what the ranks of its group agree on
  std::string group;       // "dp/0": axis and first member, the same on all its ranks
  int64_t sequence = 0;    // CollectiveRecord's
  int64_t ordinal = -1;    // counts those that all ranks of the group issue, from 0; -1 for sends and receives
  std::vector<int> ranks;  // world ranks that take part
  double age_s = 0;        // since the rank began to wait in it, or since it was finished
};

struct RankStatus {
  int rank = 0;  // in the world
  std::optional<CollectiveStatus> waiting, last_finished;
  int64_t num_under_way = 0;              // issued and not known to be finished, the waiting one included
  double quiet_s = 0;                     // since a collective was issued, waited for or finished
  std::map<std::string, int64_t> issued;  // by group: how many of those that all its ranks issue
};

// A collective in the log.
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

  // Called by Group and Work, on the thread that issues or waits. ranks are the world ranks that take part, ascending;
  // ordinary members of a group pass the same pointer each time.
  Ticket begin(std::shared_ptr<const CollectiveRecord> record, std::shared_ptr<const std::vector<int>> ranks);
  void issued(const Ticket& ticket, const std::shared_ptr<WorkState>& state);
  void begin_wait(const Ticket& ticket);
  void end_wait(const Ticket& ticket, std::function<bool()> completion);
  void failed(const Ticket& ticket);

  struct Waiting {
    int64_t serial = 0;  // tells one collective of the rank from another
    double age_s = 0;
  };
  // The collective that the rank waits in for longest. Also drops what has finished meanwhile.
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
  std::vector<Ticket> unfinished_;  // in order of issue
  Ticket last_finished_;
  std::map<std::string, int64_t> issued_;
  double last_event_s_;
  size_t poll_at_;  // a log that nobody reads must not grow with Works that nobody waits for
};

// The time inside wait(); unless end() was called it ended by an exception.
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

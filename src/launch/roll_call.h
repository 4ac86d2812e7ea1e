// Roll calls: which ranks go on when one is lost, and when a replacement joins. A run is a sequence of eras; an era is
// a world of ranks. c10d_roll_call.cc holds one in the store where the ranks met:
//
//   megalith/<round>/era/<n>/here/<seat>    a process that answered the call for era n: its iteration and process
//                           beat/<seat>    counts while it waits
//                           step/<i>       the global numbers of iteration i, for ranks that were cut off from them
//                           verdict        who belongs to era n, or why there is none; the first one written counts
//                           …              the era's own keys (c10d_meeting.cc, watchdog.h, groups)
//
// A seat is the RANK that a process was started with; an era's ranks are its seats, ascending. One store gives one
// verdict: of a network in parts, only the part that reaches the store goes on, and a stopped rank that wakes finds a
// verdict without it.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct LossTolerance {
  bool is_on = false;
  double patience_s = 60;  // for a rank that others wait for, and for ranks to answer a roll call
};

struct RollEntry {
  int64_t iteration = -1;  // steps that this process's weights have made; -1: it has none
  std::string numbers;     // global ones of the last step, opaque
};

struct RollRules {
  // Seats that go on, ascending, of those that are here, ascending; empty: none can.
  std::function<std::vector<int>(const std::vector<int>& here)> choose;
  // Asked while this process belongs to no era, or waits by wait_s; true ends the wait with RunIsOver. Members go on,
  // and stop together in the next era. May be empty.
  std::function<bool()> is_stopped = {};
  // As long as choose() finds that none can go on with those that are here.
  double wait_s = 0;
};

struct Era {
  int64_t number = 0;                // 0: the ranks that met first
  std::vector<int> seats;            // by rank
  std::vector<int64_t> iterations;   // by rank, as in RollEntry
  std::vector<int> left, joined;     // seats, since the last era
  std::string numbers;               // RollEntry's, of the newest iteration; may be empty

  int64_t newest_iteration() const;
  // The first rank with the newest weights.
  int giver() const;
};

std::string to_json(const Era& era);  // without numbers
Era era_from_json(std::string_view text);

// This process waits for a run in vain.
class RunIsOver : public std::runtime_error {
 public:
  RunIsOver(const std::string& why, bool has_ended) : std::runtime_error(why), has_ended_(has_ended) {}
  bool has_ended() const { return has_ended_; }  // in order

 private:
  bool has_ended_;
};

}  // namespace megalith

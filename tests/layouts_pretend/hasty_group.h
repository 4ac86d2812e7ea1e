// A group whose caller makes a mistake of order with some of its collectives: what a program that overlaps
// communication with computation can forget.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "comm/groups.h"

namespace megalith::test {

enum class Haste {
  kNone,
  kNoWait,       // the results are used without waiting
  kOtherStream,  // another stream waits than the one that uses the results
  kWrites,       // what is sent is written before the wait
};
const char* name_of(Haste haste);

struct HastyCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string label;  // part of it
  Haste haste = Haste::kNone;
  std::shared_ptr<std::atomic<int>> times = std::make_shared<std::atomic<int>>(0);  // how often it happened
};

// All groups of a rank that a run uses do so.
void make_hasty(Groups& groups, const HastyCollective& hasty);

}  // namespace megalith::test

// A group that runs its collectives through another one, except for those that it does wrong.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/groups.h"

namespace megalith::test {

struct WrongCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string label;  // part of it
  enum class How {
    kSkip,     // every rank keeps its own: no sum, its own rows, itself in every place
    kReverse,  // gather, scatter and all-to-all: the ranks' parts in the opposite order; rings: the other way round
    kAverage,  // instead of a sum
    kTwice,    // a sum of sums
    kLate,     // what is received is what the receive before it got; rows of an all-to-all as far as they go
    kZero,     // what is received is zeros
  } how = How::kSkip;
  std::function<bool(const at::Tensor& in, ReduceOp op)> when = {};  // empty: always
};

// All groups of a rank that a run uses do it wrong.
void replace_groups(Groups& groups, const WrongCollective& wrong);

}  // namespace megalith::test

// Sums and maxima over parameters whose elements are on several ranks (runs of ZeRO-1 and FSDP, tensor-parallel
// slices). Ranks contribute what they hold; sums are in fp64, equal to one rank's but for rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "comm/groups.h"
#include "parallel/data_parallel.h"

namespace megalith {

class SharedSums {
 public:
  struct Member {
    const Parameter* parameter;
    Group* shard;   // ranks that hold runs; null: each has all
    Group* slices;  // ranks that hold slices; null likewise
  };
  // Trainable parameters selected by `takes`. The arguments outlive it.
  SharedSums(const DataParallel& data, const Groups& groups, const std::function<bool(const Parameter&)>& takes);

  // In one order on all ranks that share members.
  const std::vector<Member>& members() const { return members_; }
  // Reduces member i's values, of one dtype and any shape, in place over the ranks that share it. Collective, once per
  // group.
  void reduce(const std::vector<std::vector<at::Tensor>>& values, ReduceOp op, std::string_view label) const;

 private:
  std::vector<Member> members_;
};

}  // namespace megalith

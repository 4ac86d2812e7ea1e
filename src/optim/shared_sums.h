// Sums and maxima over whole parameters whose elements are on several ranks: runs of ZeRO-1 and FSDP, slices of tensor
// parallelism. Each rank takes what it holds, then these are reduced. Sums are in fp64, so they are those of one rank
// but for rounding.
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
    Group* shard;   // whose ranks hold runs of the parameter; null: each has all of it
    Group* slices;  // whose ranks hold slices; null likewise
  };
  // The trainable parameters that `takes` selects. The arguments outlive it.
  SharedSums(const DataParallel& data, const Groups& groups, const std::function<bool(const Parameter&)>& takes);

  // In one order on all ranks that share members.
  const std::vector<Member>& members() const { return members_; }
  // Reduces member i's values, of one dtype and any shape, over the ranks that share it, in place. Collective, once per
  // group.
  void reduce(const std::vector<std::vector<at::Tensor>>& values, ReduceOp op, std::string_view label) const;

 private:
  std::vector<Member> members_;
};

}  // namespace megalith

// The replica that writes a tensor: the one with the fewest bytes so far. Replicas hold the same tensors in order, so
// each finds its share without communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/groups.h"

namespace megalith {

class ReplicaShare {
 public:
  explicit ReplicaShare(const Groups& groups) : groups_(groups) {}

  // True if this rank writes the next tensor, replicated along these axes, along pp on these ranks
  // (Placement::pipeline_ranks). Call for every tensor, in the same order on all replicas.
  bool is_mine(const AxisSet& replica_axes, const std::vector<int>& places, int64_t num_bytes);

 private:
  struct Load {
    AxisSet axes;
    std::vector<int> places;
    size_t mine;
    std::vector<int64_t> bytes;  // by rank among the replicas
  };
  const Groups& groups_;
  std::vector<Load> loads_;
};

}  // namespace megalith

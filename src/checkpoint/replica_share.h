// Assigns a tensor to the replica with the fewest bytes so far. Replicas hold the same tensors in order, so no
// communication is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/groups.h"

namespace megalith {

class ReplicaShare {
 public:
  explicit ReplicaShare(const Groups& groups) : groups_(groups) {}

  // This rank writes the next tensor, replicated along these axes, along pp on `places` (Placement::pipeline_ranks).
  // Call for every tensor, in the same order on all replicas.
  bool is_mine(const AxisSet& replica_axes, const std::vector<int>& places, int64_t num_bytes);

 private:
  struct Load {
    AxisSet axes;
    std::vector<int> places;
    size_t mine;
    std::vector<int64_t> bytes;  // by replica
  };
  const Groups& groups_;
  std::vector<Load> loads_;
};

}  // namespace megalith

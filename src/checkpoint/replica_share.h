// Who writes a tensor that several ranks hold alike.
//
// Each goes to the replica with the fewest bytes so far. All replicas hold the same tensors in the same order, so each
// finds its own part without asking, and the work is spread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/groups.h"

namespace megalith {

class ReplicaShare {
 public:
  explicit ReplicaShare(const Groups& groups) : groups_(groups) {}

  // Whether this rank writes the next tensor, which is the same on all ranks along these axes, along pp at these places
  // (Placement::pipeline_ranks). To be asked for every tensor in the same order on all of them.
  bool is_mine(const AxisSet& replica_axes, const std::vector<int>& places, int64_t num_bytes);

 private:
  struct Load {
    AxisSet axes;
    std::vector<int> places;
    size_t mine;
    std::vector<int64_t> bytes;  // by position among the replicas
  };
  const Groups& groups_;
  std::vector<Load> loads_;
};

}  // namespace megalith

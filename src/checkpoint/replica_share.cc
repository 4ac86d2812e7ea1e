#include "checkpoint/replica_share.h"

#include <algorithm>

namespace megalith {

bool ReplicaShare::is_mine(const AxisSet& replica_axes, const std::vector<int>& places, int64_t num_bytes) {
  auto found = std::find_if(loads_.begin(), loads_.end(),
                            [&](const Load& load) { return load.axes == replica_axes && load.places == places; });
  if (found == loads_.end()) {
    const std::vector<int> ranks = groups_.mesh.replica_ranks(replica_axes, groups_.rank, places);
    const auto mine = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), groups_.rank) - ranks.begin());
    loads_.push_back({replica_axes, places, mine, std::vector<int64_t>(ranks.size())});
    found = loads_.end() - 1;
  }
  const auto least = std::min_element(found->bytes.begin(), found->bytes.end());
  *least += num_bytes;
  return static_cast<size_t>(least - found->bytes.begin()) == found->mine;
}

}  // namespace megalith

// The parallel sizes of a run, on so few ranks that they can be the threads of one process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

struct ToyWorld {
  ParallelOptions parallel;
  int64_t world_size = 1;
  std::vector<std::string> cuts;  // what is smaller than asked for: "expert_model_parallel_size 64 -> 4"

  int64_t data_parallel_size() const;
};

// Tensor, context, pipeline and expert parallelism stay as they are while the ranks suffice; otherwise the largest of
// them shrinks, by its smallest prime factor at a time. Data parallelism keeps two ranks, or four where it is divided
// into parts (num_distributed_optimizer_instances), and more where experts need them to be spread as asked for with two
// replicas of each. An axis that is larger than one stays larger than one as long as that is possible.
//
// world_size  of the run, which fits the options; unset: not known, and data parallelism is taken to be there
ToyWorld make_toy_world(const ParallelOptions& options, std::optional<int64_t> world_size, int64_t most_ranks);

// The fewest ranks for which the options hold.
int64_t smallest_world(const ParallelOptions& options);

}  // namespace megalith

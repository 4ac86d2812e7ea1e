// A run's parallel sizes on few enough ranks to be threads of one process.
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
  std::vector<std::string> cuts;  // "expert_model_parallel_size 64 -> 4"

  int64_t data_parallel_size() const;
};

// Tensor, context, pipeline and expert sizes stay while ranks suffice; else the largest shrinks, by its smallest prime
// factor each time, if possible not to one. Data parallelism keeps two ranks, four if divided into parts
// (num_distributed_optimizer_instances), and more where spread experts need them for two replicas.
//
//   world_size  fits the options; unset: data parallelism is assumed
ToyWorld make_toy_world(const ParallelOptions& options, std::optional<int64_t> world_size, int64_t most_ranks);

// The fewest ranks for which the options hold.
int64_t smallest_world(const ParallelOptions& options);

}  // namespace megalith

// Compares ranks that should hold the same tensors: reveals missing reductions, wrong kernels and failing memory early.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"

namespace megalith {

struct ReplicaDifference {
  std::string key;     // "model", "exp_avg", …
  std::string tensor;  // its first piece's name
  Axis axis = Axis::kDp;
  int first_rank = 0, other_rank = 0;  // world ranks

  std::string text() const;  // "model model.norm.weight differs between rank 0 and rank 3 (dp)"
};

// Compares checksums along replica_axes. Returns on all ranks the first difference in the order of `tensors`, from the
// lowest rank that sees one. Costs a pass over the bytes and a small collective per axis. Collective over the world;
// replicas pass the same order.
std::optional<ReplicaDifference> find_replica_difference(std::span<const CheckpointTensor> tensors,
                                                         const Groups& groups);

}  // namespace megalith

// Compares ranks that should hold the same tensors, to find a missing reduction, a wrong kernel or failing memory
// before the loss shows it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"

namespace megalith {

struct ReplicaDifference {
  std::string key;     // "model", "exp_avg", …
  std::string tensor;  // canonical name of its first piece
  Axis axis = Axis::kDp;
  int first_rank = 0, other_rank = 0;  // world ranks with different bytes

  std::string text() const;  // "model model.norm.weight differs between rank 0 and rank 3 (dp)"
};

// Compares checksums along every tensor's replica_axes. Returns on all ranks the first difference in the order of
// `tensors`, from the lowest rank that sees one. Costs a pass over the bytes and a small collective per axis.
// Collective over the world; replicas pass the same tensors in order.
std::optional<ReplicaDifference> find_replica_difference(std::span<const CheckpointTensor> tensors,
                                                         const Groups& groups);

}  // namespace megalith

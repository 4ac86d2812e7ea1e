// Whether ranks that should hold the same tensors do: what finds a missing reduction, a wrong kernel or a failing
// memory before the loss shows it.
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
  int first_rank = 0, other_rank = 0;  // world ranks that hold different bytes

  std::string text() const;  // "model model.norm.weight differs between rank 0 and rank 3 (dp)"
};

// Compares checksums of every tensor along its replica_axes. The first difference in the order of `tensors`, of the
// lowest rank that sees one, the same on all ranks; nothing when all agree. Costs a pass over the tensors' bytes and
// one small collective an axis. Collective over the world; replicas pass the same tensors in the same order.
std::optional<ReplicaDifference> find_replica_difference(std::span<const CheckpointTensor> tensors,
                                                         const Groups& groups);

}  // namespace megalith

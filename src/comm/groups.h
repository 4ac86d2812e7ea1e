// The live groups of one rank: what layers, buffers and the trainer receive to communicate. Built from a Mesh and a
// factory that makes one group of any back end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mesh.h"

namespace megalith {

// ranks  members (world ranks, ascending); the calling rank is one of them, and there are at least two
// axis   "tp", "dp_cp", "embedding", …; unique among the calls of one rank
// Every member calls with the same arguments. Two groups of a rank are asked for in the same order on all ranks.
using GroupFactory = std::function<std::shared_ptr<Group>(std::vector<int> ranks, const std::string& axis)>;

struct Groups {
  // Groups of one rank are SingleGroups; the factory is asked for the others.
  Groups(const Mesh& mesh, int rank, const GroupFactory& factory);

  // A world of one rank.
  static Groups single();

  Mesh mesh;
  int rank = 0;  // in the world

  using Pointer = std::shared_ptr<Group>;
  Pointer world;
  // Dense view.
  Pointer tp, cp, dp, pp;
  Pointer dp_cp;      // gradients of dense parameters, loss sums
  Pointer tp_cp;      // statistics of one sample's tokens (expert balance)
  Pointer tp_dp_cp;   // all ranks of a pipeline stage (FP8 maxima)
  Pointer tp_pp;      // one model replica
  Pointer embedding;  // first and last stage; null on the stages between
  // Expert view.
  Pointer etp, ep, edp;
  Pointer etp_ep;     // token exchange
  Pointer etp_ep_pp;  // one replica of the experts
  // Halves of split axes. When not split, dp_shard, edp_shard and cp_ring are the whole axis, the others groups of one.
  Pointer dp_shard, dp_replicate, dp_shard_cp;
  Pointer edp_shard, edp_replicate;
  Pointer cp_ulysses, cp_ring;

  // The group that lies on one axis.
  const Pointer& of(Axis axis) const;
  // Every group, in the order of creation, null ones left out.
  std::vector<Pointer> all() const;
};

}  // namespace megalith

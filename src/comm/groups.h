// The live groups of one rank: what layers, buffers and the trainer receive to communicate. Built from a Mesh and a
// factory that makes one communicator of any back end.
//
// Axes whose ranks are the same share a communicator (group_view.h): eight ranks of plain data parallelism have one,
// not one each for world, dp, dp_cp, edp, …. A communicator is made, and connects, once for its set of ranks; only a
// pipeline has two, one a direction (communicators.h):
//
// * The constructor connects the world first, and then the sets with ranks of several pipeline stages (pp, embedding).
//   Every rank does so in this order, so nobody waits for ever: take a waiting rank whose set is the earliest. All
//   members of that set come, because none of them can be held up in an earlier one.
// * Whoever builds the model connects the sets of some of a pipeline's stages that hold copies of a parameter
//   (on_stages), all of them in one order.
// * A training run connects what its steps use of the others before the first one (connect_for_training).
// * What is left connects at its first use, because many layouts do not use them all. Its ranks are of one stage, and
//   the ranks of a stage issue the same calls in the same order. Suppose a run stalls: take from each stage the rank
//   that has come least far. The others of its stage have issued all that it could wait for, so it waits for another
//   stage. Stages that wait for one another in a circle would be a fault of the schedule, and schedules are proved to
//   have none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mesh.h"

namespace megalith {

// ranks  members (world ranks, ascending); the calling rank is one of them, and there are at least two
// axis   of the axes that it serves the first, one with priority (communicators.h) before others: "tp", "dp_cp",
//        "embedding", …; unique among the calls of one rank
// Every member calls with the same arguments, and two members call for what both are part of in the same order. Nobody
// waits for another before Group::connect() or the first collective.
using GroupFactory = std::function<std::shared_ptr<Group>(std::vector<int> ranks, const std::string& axis)>;

struct Groups {
  // Groups of one rank are SingleGroups; the factory is asked once for every other set of ranks.
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
  Pointer embedding;  // first and last stage; null on the stages between
  // Expert view.
  Pointer etp, ep, edp;
  Pointer etp_ep;  // token exchange
  // Halves of split axes. When not split, dp_shard, edp_shard and cp_ring are the whole axis, the others groups of one.
  Pointer dp_shard, dp_replicate, dp_shard_cp;
  Pointer edp_shard, edp_replicate;
  Pointer cp_ulysses, cp_ring;

  // The group that lies on one axis.
  const Pointer& of(Axis axis) const;
  // The ranks at these places of this rank's pipeline, ascending, its own among them: the holders of a parameter that
  // several stages use. No places: those of `embedding`. Made when it is asked for the first time, by all of them; it
  // connects like any other.
  Pointer on_stages(const std::vector<int>& places) const;
  // Every group that every rank has, in the order of creation, null ones left out.
  std::vector<Pointer> all() const;

 private:
  struct Maker;
  std::shared_ptr<Maker> maker_;
};

}  // namespace megalith

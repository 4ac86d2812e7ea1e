// A rank's live groups, through which layers, buffers and the trainer communicate. Built from a Mesh and a back end's
// factory of communicators.
//
// Axes with the same ranks share a communicator (group_view.h), so plain data parallelism has one, not one each for
// world, dp, dp_cp, edp, …. Each set of ranks is connected once; only a pipeline has two communicators, one per
// direction (communicators.h). No order of connecting can deadlock:
//
// * The constructor connects the world, then the sets that span pipeline stages (pp, embedding), on every rank in this
//   order: the members of the earliest set awaited cannot be held up in an earlier one.
// * The model's builder connects the sets of stages that hold copies of a parameter (on_stages), in one order.
// * A training run connects what its steps use of the rest before the first one (connect_for_training).
// * Others connect at first use, as many layouts never use them. Their ranks are of one stage and issue the same calls
// in
//   the same order, so each stage's slowest rank can only wait for another stage, and schedules are proved to have no
//   cycle of stages.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mesh.h"

namespace megalith {

// ranks  members (ascending world ranks, at least two), including the calling rank
// axis   of the axes served the first, preferring those with priority (communicators.h): "tp", "dp_cp", "embedding", …;
//        unique among the calls of one rank
// Every member calls with the same arguments, and any two members call for their common sets in the same order. No rank
// waits for another before Group::connect() or the first collective.
using GroupFactory = std::function<std::shared_ptr<Group>(std::vector<int> ranks, const std::string& axis)>;

struct Groups {
  // Groups of one rank are SingleGroups; the factory is asked once for every other set of ranks.
  Groups(const Mesh& mesh, int rank, const GroupFactory& factory);

  static Groups single();

  Mesh mesh;
  int rank = 0;

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
  // Halves of split axes. If not split, dp_shard, edp_shard and cp_ring are the whole axis, the others groups of one.
  Pointer dp_shard, dp_replicate, dp_shard_cp;
  Pointer edp_shard, edp_replicate;
  Pointer cp_ulysses, cp_ring;

  const Pointer& of(Axis axis) const;
  // The ranks at these stages of this rank's pipeline, ascending, including this one: the holders of a parameter that
  // several stages use. No places: `embedding`. Made, by all of them, when first asked for.
  Pointer on_stages(const std::vector<int>& places) const;
  // Every group that all ranks have, in the order of creation, without null ones.
  std::vector<Pointer> all() const;

 private:
  struct Maker;
  std::shared_ptr<Maker> maker_;
};

}  // namespace megalith

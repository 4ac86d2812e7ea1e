// A rank's live groups, from a Mesh and a back end's factory.
//
// Axes with the same ranks share a communicator (group_view.h); only pipelines have two, one per direction. Connecting
// cannot deadlock:
//
// * The constructor connects the sets that span stages (world, pp, embedding) in this order on every rank: members of
//   the earliest set awaited cannot be held up earlier.
// * The model's builder connects the stages that hold a parameter's copies (on_stages), in one order.
// * Training connects what its steps use (connect_for_training).
// * Others, often unused, connect at first use. Their ranks, of one stage, issue the same calls in order; a stage's
//   slowest rank can only wait for another stage, and schedules are proved free of cycles.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mesh.h"

namespace megalith {

//   ranks  ascending world ranks, at least two, with the calling one
//   axis   the first axis served, preferring those with priority; unique per rank
// Members call with the same arguments, any two in the same order for their common sets. Only Group::connect() or the
// first collective blocks.
using GroupFactory = std::function<std::shared_ptr<Group>(std::vector<int> ranks, const std::string& axis)>;

struct Groups {
  // Calls the factory once per set of several ranks.
  Groups(const Mesh& mesh, int rank, const GroupFactory& factory);

  static Groups single();

  Mesh mesh;
  int rank = 0;

  using Pointer = std::shared_ptr<Group>;
  Pointer world;
  // Dense view.
  Pointer tp, cp, dp, pp;
  Pointer dp_cp;      // dense gradients, loss sums
  Pointer tp_cp;      // statistics of a sample's tokens (expert balance)
  Pointer embedding;  // first and last stage; null between
  // Expert view.
  Pointer etp, ep, edp;
  Pointer etp_ep;  // token exchange
  // If not split, dp_shard, edp_shard and cp_ring are the whole axis, the others groups of one.
  Pointer dp_shard, dp_replicate, dp_shard_cp;
  Pointer edp_shard, edp_replicate;
  Pointer cp_ulysses, cp_ring;

  const Pointer& of(Axis axis) const;
  // This pipeline's ranks at these stages, ascending, with this one: holders of a parameter. None: `embedding`. All
  // make it at their first call.
  Pointer on_stages(const std::vector<int>& places) const;
  // In the order of creation, without null ones; excludes on_stages().
  std::vector<Pointer> all() const;

 private:
  struct Maker;
  std::shared_ptr<Maker> maker_;
};

}  // namespace megalith

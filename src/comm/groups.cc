#include "comm/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/communicators.h"
#include "comm/single_group.h"
#include "core/error.h"

namespace megalith {

struct Groups::Maker {
  int rank;
  GroupFactory factory;
  std::map<std::vector<int>, std::string> names = {};
  std::map<std::vector<int>, Pointer> communicators = {};
  std::map<std::vector<int>, Pointer> on_stages = {};

  void name_after(const std::string& axis, const std::vector<int>& ranks) {
    MEGALITH_CHECK(has_priority(axis), "{} has no priority", axis);
    names.try_emplace(ranks, axis);
  }
  const Pointer& communicator_of(const std::vector<int>& ranks, const std::string& axis) {
    Pointer& communicator = communicators[ranks];
    const auto name = names.find(ranks);
    if (!communicator) communicator = factory(ranks, name == names.end() ? axis : name->second);
    return communicator;
  }
  Pointer make(const std::vector<int>& ranks, const std::string& axis) {
    if (ranks.empty()) return nullptr;
    if (ranks.size() == 1) return std::make_shared<SingleGroup>(axis, rank);
    return std::make_shared<GroupView>(communicator_of(ranks, axis), axis);
  }
  Pointer make_pipeline(const std::vector<int>& ranks) {
    if (ranks.size() == 1) return make(ranks, "pp");
    const Pointer& forward = communicator_of(ranks, "pp");
    return std::make_shared<PipelineView>(forward, factory(ranks, "pp_backward"), "pp");
  }
};

Groups::Groups(const Mesh& mesh_of_world, int world_rank, const GroupFactory& factory)
    : mesh(mesh_of_world), rank(world_rank), maker_(new Maker{.rank = world_rank, .factory = factory}) {
  MEGALITH_CHECK(rank >= 0 && rank < mesh.world_size(), "rank {} in a world of {}", rank, mesh.world_size());

  const auto make = [&](const std::vector<int>& ranks, const std::string& axis) { return maker_->make(ranks, axis); };
  const auto over = [&](const AxisSet& axes) { return make(mesh.ranks_of(axes, rank), axes.text()); };

  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kCpUlysses, Axis::kCpRing, Axis::kPp}) {
    const AxisSet axes(axis);
    maker_->name_after(axes.text(), mesh.ranks_of(axes, rank));
  }
  // Ranks must agree on this order.
  world = make(mesh.ranks_of({Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp}, rank), "world");
  tp = over(Axis::kTp);
  cp = over(Axis::kCp);
  dp = over(Axis::kDp);
  pp = maker_->make_pipeline(mesh.ranks_of(Axis::kPp, rank));
  dp_cp = make(mesh.ranks_of({Axis::kDp, Axis::kCp}, rank), "dp_cp");
  tp_cp = over({Axis::kTp, Axis::kCp});
  embedding = make(mesh.embedding_ranks(rank), "embedding");
  etp = over(Axis::kEtp);
  ep = over(Axis::kEp);
  edp = over(Axis::kEdp);
  etp_ep = over({Axis::kEtp, Axis::kEp});
  dp_shard = over(Axis::kDpShard);
  dp_replicate = over(Axis::kDpReplicate);
  dp_shard_cp = make(mesh.ranks_of({Axis::kDpShard, Axis::kCp}, rank), "dp_shard_cp");
  edp_shard = over(Axis::kEdpShard);
  edp_replicate = over(Axis::kEdpReplicate);
  cp_ulysses = over(Axis::kCpUlysses);
  cp_ring = over(Axis::kCpRing);

  for (const Pointer& group : {world, pp, embedding}) {
    if (group) group->connect();
  }
}

Groups Groups::single() {
  return Groups(Mesh::single(), 0, [](const std::vector<int>&, const std::string& axis) -> Pointer {
    throw InternalError("a world of one has no group " + axis + " of several ranks");
  });
}

const Groups::Pointer& Groups::of(Axis axis) const {
  switch (axis) {
    case Axis::kTp:
      return tp;
    case Axis::kCp:
      return cp;
    case Axis::kDp:
      return dp;
    case Axis::kPp:
      return pp;
    case Axis::kEtp:
      return etp;
    case Axis::kEp:
      return ep;
    case Axis::kEdp:
      return edp;
    case Axis::kDpShard:
      return dp_shard;
    case Axis::kDpReplicate:
      return dp_replicate;
    case Axis::kCpUlysses:
      return cp_ulysses;
    case Axis::kCpRing:
      return cp_ring;
    case Axis::kEdpShard:
      return edp_shard;
    case Axis::kEdpReplicate:
      return edp_replicate;
  }
  throw InternalError("an axis without a group");
}

Groups::Pointer Groups::on_stages(const std::vector<int>& places) const {
  if (places.empty() || (embedding && places == std::vector<int>{0, pp->size() - 1})) return embedding;
  Pointer& group = maker_->on_stages[places];
  if (group) return group;
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(pp->ranks().at(static_cast<size_t>(place)));
  MEGALITH_CHECK(std::ranges::is_sorted(ranks) && std::ranges::find(ranks, rank) != ranks.end(),
                 "rank {} asks for the stages {} of its pipeline", rank, fmt::join(places, ", "));
  group = maker_->make(ranks, fmt::format("pp_{}", fmt::join(places, "_")));
  return group;
}

std::vector<Groups::Pointer> Groups::all() const {
  std::vector<Pointer> groups;
  for (const Pointer* group :
       {&world, &tp, &cp, &dp, &pp, &dp_cp, &tp_cp, &embedding, &etp, &ep, &edp, &etp_ep, &dp_shard, &dp_replicate,
        &dp_shard_cp, &edp_shard, &edp_replicate, &cp_ulysses, &cp_ring}) {
    if (*group) groups.push_back(*group);
  }
  return groups;
}

}  // namespace megalith

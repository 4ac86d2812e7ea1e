// World ranks and coordinates on the parallel axes, in two views (Megatron's rank order, leftmost axis fastest;
// megatron/core/parallel_state.py):
//
//   dense view   tp, cp, dp, pp        rank = tp' + tp (cp' + cp (dp' + dp pp'))
//   expert view  etp, ep, edp, pp      rank = etp' + etp (ep' + ep (edp' + edp pp'))       edp = world / (etp ep pp)
//
// With use_tp_pp_dp_mapping, pp is faster than dp and edp. Axes may be split, the faster half first:
//
//   dp  = dp_shard  × dp_replicate      (sharded within, replicated across: hybrid FSDP)
//   edp = edp_shard × edp_replicate     as many replicas
//   cp  = cp_ulysses × cp_ring          (all-to-all within, ring across)
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace megalith {

class OptionVisitor;

// clang-format off
enum class Axis {
  kTp, kCp, kDp, kPp,                // dense view
  kEtp, kEp, kEdp,                   // expert view, with kPp
  kDpShard, kDpReplicate, kCpUlysses, kCpRing, kEdpShard, kEdpReplicate,  // halves
};
// clang-format on
inline constexpr int kNumAxes = 13;

std::string_view name_of(Axis axis);  // "tp", "dp_shard", …

// Axes of one view: {Axis::kDp, Axis::kCp}. Never a split axis with its own half.
class AxisSet {
 public:
  AxisSet() = default;
  AxisSet(Axis axis) : AxisSet({axis}) {}  // NOLINT: a single axis is a set
  AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) insert(axis);
  }
  void insert(Axis axis) { bits_ |= 1u << static_cast<int>(axis); }
  bool contains(Axis axis) const { return (bits_ >> static_cast<int>(axis)) & 1u; }
  bool empty() const { return bits_ == 0; }
  AxisSet without(const AxisSet& other) const {
    AxisSet rest;
    rest.bits_ = bits_ & ~other.bits_;
    return rest;
  }
  bool operator==(const AxisSet&) const = default;
  std::string text() const;  // "dp_cp", in enumeration order

 private:
  uint32_t bits_ = 0;
};

// Data-parallel sizes follow from the world size.
struct ParallelOptions {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t context_parallel_size = 1;
  std::vector<std::string> cp_comm_type = {"p2p"};           // one, or one per layer (context_parallel.h)
  std::vector<int64_t> hierarchical_context_parallel_sizes;  // cp_ulysses, cp_ring; empty: 1, context_parallel_size
  int64_t expert_model_parallel_size = 1;
  std::optional<int64_t> expert_tensor_parallel_size;  // unset: tensor_model_parallel_size
  int64_t num_distributed_optimizer_instances = 1;     // dp_replicate
  bool use_tp_pp_dp_mapping = false;
  double distributed_timeout_minutes = 10;
  std::optional<std::string> store_secret_file;  // launch/store_secret.h

  void visit(OptionVisitor& visitor);
};

// One error per broken rule.
std::vector<UserError> check_parallel_sizes(const ParallelOptions& options, int64_t world_size);

class Mesh {
 public:
  struct Sizes {
    int tp = 1, cp = 1, dp = 1, pp = 1;
    int etp = 1, ep = 1;  // edp follows
    int dp_replicate = 1, cp_ulysses = 1;
    bool pp_before_dp = false;
  };

  // InternalError if the views do not match.
  explicit Mesh(const Sizes& sizes);

  static Mesh single() { return Mesh(Sizes{}); }
  // Requires check_parallel_sizes().
  static Mesh from_options(const ParallelOptions& options, int64_t world_size);

  int world_size() const { return world_size_; }
  int size(Axis axis) const;
  int size(const AxisSet& axes) const;
  int coordinate(Axis axis, int rank) const;

  // Ranks differing from `rank` only on these axes, ascending, with `rank`. No axes: {rank}.
  std::vector<int> ranks_of(const AxisSet& axes, int rank) const;
  // A partition of the world, by first rank.
  std::vector<std::vector<int>> groups_of(const AxisSet& axes) const;

  int rank_at(int tp, int cp, int dp, int pp) const;
  int expert_rank_at(int etp, int ep, int edp, int pp) const;

  // The pipeline's first and last stage (a tied embedding): {rank} if pp = 1, empty on other stages.
  std::vector<int> embedding_ranks(int rank) const;

  // Ranks with replicas of what `rank` holds, ascending, with `rank`. Along pp only these stages; none: both ends (a
  // tied embedding).
  std::vector<int> replica_ranks(const AxisSet& axes, int rank, const std::vector<int>& places = {}) const;

  // The axes larger than one: "rank 5 dp1 tp1 pp0"; "rank 0".
  std::string describe(int rank) const;

  const Sizes& sizes() const { return sizes_; }

 private:
  // Stride in ranks.
  struct Extent {
    int size = 1, stride = 1;
  };
  const Extent& extent(Axis axis) const { return extents_[static_cast<size_t>(axis)]; }
  int offset(Axis axis, int coordinate) const;

  Sizes sizes_;
  int world_size_ = 1;
  Extent extents_[kNumAxes];
};

}  // namespace megalith

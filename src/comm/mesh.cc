#include "comm/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/context_parallel.h"
#include "config/option.h"

namespace megalith {
namespace {

constexpr Axis kAllAxes[] = {Axis::kTp,     Axis::kCp,       Axis::kDp,          Axis::kPp,          Axis::kEtp,
                             Axis::kEp,     Axis::kEdp,      Axis::kDpShard,     Axis::kDpReplicate, Axis::kCpUlysses,
                             Axis::kCpRing, Axis::kEdpShard, Axis::kEdpReplicate};

// kPp belongs to both.
constexpr Axis kDenseAxes[] = {Axis::kTp,          Axis::kCp,        Axis::kDp,    Axis::kDpShard,
                               Axis::kDpReplicate, Axis::kCpUlysses, Axis::kCpRing};
constexpr Axis kExpertAxes[] = {Axis::kEtp, Axis::kEp, Axis::kEdp, Axis::kEdpShard, Axis::kEdpReplicate};

struct Halves {
  Axis whole, fast, slow;
};
constexpr Halves kHalves[] = {{Axis::kDp, Axis::kDpShard, Axis::kDpReplicate},
                              {Axis::kCp, Axis::kCpUlysses, Axis::kCpRing},
                              {Axis::kEdp, Axis::kEdpShard, Axis::kEdpReplicate}};

bool contains_any(const AxisSet& axes, std::initializer_list<Axis> some) {
  return std::any_of(some.begin(), some.end(), [&](Axis axis) { return axes.contains(axis); });
}

void check_axes(const AxisSet& axes) {
  const auto in_set = [&](Axis axis) { return axes.contains(axis); };
  const bool dense = std::any_of(std::begin(kDenseAxes), std::end(kDenseAxes), in_set);
  const bool expert = std::any_of(std::begin(kExpertAxes), std::end(kExpertAxes), in_set);
  MEGALITH_CHECK(!dense || !expert, "axes {} mix the dense and the expert view", axes.text());
  for (const Halves& halves : kHalves) {
    MEGALITH_CHECK(!axes.contains(halves.whole) || !contains_any(axes, {halves.fast, halves.slow}),
                   "axes {} name {} and a half of it", axes.text(), name_of(halves.whole));
  }
}

// The largest multiple of `block`; at least one block.
int64_t nearest_world(int64_t world_size, int64_t block) { return std::max(world_size / block, int64_t{1}) * block; }

}  // namespace

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return "tp";
    case Axis::kCp:
      return "cp";
    case Axis::kDp:
      return "dp";
    case Axis::kPp:
      return "pp";
    case Axis::kEtp:
      return "etp";
    case Axis::kEp:
      return "ep";
    case Axis::kEdp:
      return "edp";
    case Axis::kDpShard:
      return "dp_shard";
    case Axis::kDpReplicate:
      return "dp_replicate";
    case Axis::kCpUlysses:
      return "cp_ulysses";
    case Axis::kCpRing:
      return "cp_ring";
    case Axis::kEdpShard:
      return "edp_shard";
    case Axis::kEdpReplicate:
      return "edp_replicate";
  }
  return "?";
}

std::string AxisSet::text() const {
  std::vector<std::string_view> names;
  for (const Axis axis : kAllAxes) {
    if (contains(axis)) names.push_back(name_of(axis));
  }
  return fmt::format("{}", fmt::join(names, "_"));
}

// Products of three stay below 2^63.
constexpr double kMostRanks = 1 << 20;

void ParallelOptions::visit(OptionVisitor& v) {
  v.group("Parallelism", {.changes_numbers = false, .in_toy = InToy::kMade, .acts_in = kOnLayouts});
  v.field("tensor_model_parallel_size", tensor_model_parallel_size,
          "Ranks that share every layer's matrices (tensor parallelism).")
      .unit("ranks")
      .within(1, kMostRanks)
      .acts_in(kOnLayouts | kPlan);
  v.field("pipeline_model_parallel_size", pipeline_model_parallel_size,
          "Stages that the layers are cut into (pipeline parallelism).")
      .unit("ranks")
      .within(1, kMostRanks)
      .acts_in(kOnLayouts | kPlan);
  v.field("context_parallel_size", context_parallel_size, "Ranks that share every sequence (context parallelism).")
      .unit("ranks")
      .within(1, kMostRanks)
      .acts_in(kOnLayouts | kPlan);
  v.field("cp_comm_type", cp_comm_type,
          "How attention sees a shared sequence, one word for all layers or one for each: p2p (keys and values go "
          "round in a ring, behind the computation), all_gather (of all keys and values), a2a (each rank has all "
          "tokens of some heads), a2a+p2p (a2a among neighbours, a ring across). Prediction modules (mtp_num_layers) "
          "take the last layer's.");
  v.field("hierarchical_context_parallel_sizes", hierarchical_context_parallel_sizes,
          "For cp_comm_type a2a+p2p: the number of ranks of an all-to-all, then of a ring; their product is "
          "context_parallel_size.");
  v.field("expert_model_parallel_size", expert_model_parallel_size,
          "Ranks that the experts of a layer are spread over (expert parallelism).")
      .unit("ranks")
      .within(1, kMostRanks);
  v.field("expert_tensor_parallel_size", expert_tensor_parallel_size,
          "Ranks that share every expert's matrices; unset: tensor_model_parallel_size.")
      .unit("ranks")
      .within(1, kMostRanks);
  v.field("num_distributed_optimizer_instances", num_distributed_optimizer_instances,
          "Parts that the data-parallel ranks are divided into. Each part holds one whole copy of what is sharded, so "
          "gathers and reduce-scatters stay within a part; gradients are then summed over the parts.")
      .at_least(1)
      .acts_in(kTrainOnly);
  v.field("use_tp_pp_dp_mapping", use_tp_pp_dp_mapping,
          "Number the ranks so that pipeline stages are neighbours and data-parallel replicas far apart.");
  v.field("distributed_timeout_minutes", distributed_timeout_minutes,
          "Longest wait for other ranks, at the start and in every collective, before the run fails.")
      .unit("minutes")
      .above(0);
  v.field("store_secret_file", store_secret_file,
          "File with a secret of at least 16 characters, the same for all ranks and readable by its owner only. The "
          "ranks meet by it: a process that only knows their port can neither take a rank's place nor change what they "
          "agree on.")
      .by_rank(ByRank::kFree);
}

std::vector<UserError> check_parallel_sizes(const ParallelOptions& options, int64_t world_size) {
  std::vector<UserError> errors = check_context_parallel_options(options);
  const int64_t tp = options.tensor_model_parallel_size, pp = options.pipeline_model_parallel_size;
  const int64_t cp = options.context_parallel_size, ep = options.expert_model_parallel_size;
  const int64_t etp = options.expert_tensor_parallel_size.value_or(tp);

  const int64_t dense = tp * cp * pp;
  if (world_size % dense != 0) {
    errors.emplace_back(
        fmt::format("tensor_model_parallel_size {} × context_parallel_size {} × pipeline_model_parallel_size {} = {} "
                    "does not divide the {} rank(s) started",
                    tp, cp, pp, dense, world_size),
        fmt::format("start {} ranks or another multiple of {}, or make the parallel sizes smaller",
                    nearest_world(world_size, dense), dense));
  }
  // Without expert sizes, experts follow the dense layout.
  const bool has_expert_sizes = ep > 1 || options.expert_tensor_parallel_size;
  const int64_t expert = etp * ep * pp;
  if (has_expert_sizes && world_size % expert != 0) {
    const std::string etp_text = options.expert_tensor_parallel_size
                                     ? fmt::format("expert_tensor_parallel_size {}", etp)
                                     : fmt::format(
                                           "expert_tensor_parallel_size {} (unset, so "
                                           "tensor_model_parallel_size)",
                                           etp);
    errors.emplace_back(
        fmt::format("{} × expert_model_parallel_size {} × pipeline_model_parallel_size {} = {} does not "
                    "divide the {} rank(s) started",
                    etp_text, ep, pp, expert, world_size),
        fmt::format("start {} ranks or another multiple of {}, or make the expert sizes smaller",
                    nearest_world(world_size, expert), expert));
  }
  const int64_t parts = options.num_distributed_optimizer_instances;
  const auto check_parts = [&](const char* what, int64_t size) {
    if (size % parts == 0) return;
    errors.emplace_back(
        fmt::format("num_distributed_optimizer_instances {} does not divide the {} {}", parts, what, size),
        "choose a divisor of it");
  };
  if (errors.empty()) {
    check_parts("data-parallel size", world_size / dense);
    if (has_expert_sizes) check_parts("data-parallel size of the experts", world_size / expert);
  }
  // pp is in the middle: the views' pipelines agree only if faster axes have equal size.
  if (errors.empty() && options.use_tp_pp_dp_mapping && pp > 1 && dense != expert) {
    errors.emplace_back(
        fmt::format("use_tp_pp_dp_mapping needs equal data-parallel sizes for dense layers and experts: they are {} "
                    "({} ranks / (tp {} × cp {} × pp {})) and {} ({} ranks / (etp {} × ep {} × pp {}))",
                    world_size / dense, world_size, tp, cp, pp, world_size / expert, world_size, etp, ep, pp),
        fmt::format("make expert_tensor_parallel_size × expert_model_parallel_size equal to {}, or leave "
                    "use_tp_pp_dp_mapping out",
                    tp * cp));
  }
  return errors;
}

Mesh::Mesh(const Sizes& sizes) : sizes_(sizes) {
  for (const int size :
       {sizes.tp, sizes.cp, sizes.dp, sizes.pp, sizes.etp, sizes.ep, sizes.dp_replicate, sizes.cp_ulysses}) {
    MEGALITH_CHECK(size >= 1, "a parallel size of {}", size);
  }
  world_size_ = sizes.tp * sizes.cp * sizes.dp * sizes.pp;
  const int edp = narrow<int>(div_exact(world_size_, int64_t{sizes.etp} * sizes.ep * sizes.pp));

  const auto place = [&](std::initializer_list<std::pair<Axis, int>> order) {
    int stride = 1;
    for (const auto& [axis, size] : order) {
      extents_[static_cast<size_t>(axis)] = {size, stride};
      stride *= size;
    }
  };
  if (sizes.pp_before_dp) {
    MEGALITH_CHECK(sizes.pp == 1 || edp == sizes.dp, "dp {} and edp {} differ, so the views have different pipelines",
                   sizes.dp, edp);
    place({{Axis::kTp, sizes.tp}, {Axis::kCp, sizes.cp}, {Axis::kPp, sizes.pp}, {Axis::kDp, sizes.dp}});
    place({{Axis::kEtp, sizes.etp}, {Axis::kEp, sizes.ep}, {Axis::kPp, sizes.pp}, {Axis::kEdp, edp}});
  } else {
    place({{Axis::kTp, sizes.tp}, {Axis::kCp, sizes.cp}, {Axis::kDp, sizes.dp}, {Axis::kPp, sizes.pp}});
    place({{Axis::kEtp, sizes.etp}, {Axis::kEp, sizes.ep}, {Axis::kEdp, edp}, {Axis::kPp, sizes.pp}});
  }

  const auto split = [&](const Halves& halves, int fast_size, int slow_size) {
    const Extent whole = extent(halves.whole);
    extents_[static_cast<size_t>(halves.fast)] = {fast_size, whole.stride};
    extents_[static_cast<size_t>(halves.slow)] = {slow_size, whole.stride * fast_size};
  };
  split(kHalves[0], narrow<int>(div_exact(sizes.dp, sizes.dp_replicate)), sizes.dp_replicate);
  split(kHalves[1], sizes.cp_ulysses, narrow<int>(div_exact(sizes.cp, sizes.cp_ulysses)));
  split(kHalves[2], narrow<int>(div_exact(edp, sizes.dp_replicate)), sizes.dp_replicate);
}

Mesh Mesh::from_options(const ParallelOptions& options, int64_t world_size) {
  Sizes sizes;
  sizes.tp = narrow<int>(options.tensor_model_parallel_size);
  sizes.cp = narrow<int>(options.context_parallel_size);
  sizes.pp = narrow<int>(options.pipeline_model_parallel_size);
  sizes.dp = narrow<int>(div_exact(world_size, int64_t{sizes.tp} * sizes.cp * sizes.pp));
  sizes.ep = narrow<int>(options.expert_model_parallel_size);
  sizes.etp = narrow<int>(options.expert_tensor_parallel_size.value_or(options.tensor_model_parallel_size));
  sizes.dp_replicate = narrow<int>(options.num_distributed_optimizer_instances);
  if (!options.hierarchical_context_parallel_sizes.empty()) {
    sizes.cp_ulysses = narrow<int>(options.hierarchical_context_parallel_sizes[0]);
  }
  sizes.pp_before_dp = options.use_tp_pp_dp_mapping;
  return Mesh(sizes);
}

int Mesh::size(Axis axis) const { return extent(axis).size; }

int Mesh::size(const AxisSet& axes) const {
  check_axes(axes);
  int size = 1;
  for (const Axis axis : kAllAxes) {
    if (axes.contains(axis)) size *= extent(axis).size;
  }
  return size;
}

int Mesh::coordinate(Axis axis, int rank) const {
  MEGALITH_CHECK(rank >= 0 && rank < world_size_, "rank {} in a world of {}", rank, world_size_);
  return rank / extent(axis).stride % extent(axis).size;
}

std::vector<int> Mesh::ranks_of(const AxisSet& axes, int rank) const {
  check_axes(axes);
  std::vector<int> ranks = {rank};
  for (const Axis axis : kAllAxes) {
    if (!axes.contains(axis)) continue;
    const Extent& along = extent(axis);
    const int own = coordinate(axis, rank) * along.stride;
    std::vector<int> longer;
    for (const int base : ranks) {
      for (int i = 0; i < along.size; ++i) longer.push_back(base - own + i * along.stride);
    }
    ranks = std::move(longer);
  }
  // Ascending is fastest axis first, whatever the axes.
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups_of(const AxisSet& axes) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_size_; ++rank) {
    std::vector<int> ranks = ranks_of(axes, rank);
    if (ranks.front() == rank) groups.push_back(std::move(ranks));
  }
  return groups;
}

int Mesh::offset(Axis axis, int coordinate) const {
  MEGALITH_CHECK(coordinate >= 0 && coordinate < size(axis), "{} {} of {}", name_of(axis), coordinate, size(axis));
  return coordinate * extent(axis).stride;
}

int Mesh::rank_at(int tp, int cp, int dp, int pp) const {
  return offset(Axis::kTp, tp) + offset(Axis::kCp, cp) + offset(Axis::kDp, dp) + offset(Axis::kPp, pp);
}

int Mesh::expert_rank_at(int etp, int ep, int edp, int pp) const {
  return offset(Axis::kEtp, etp) + offset(Axis::kEp, ep) + offset(Axis::kEdp, edp) + offset(Axis::kPp, pp);
}

std::vector<int> Mesh::embedding_ranks(int rank) const {
  const std::vector<int> pipeline = ranks_of(Axis::kPp, rank);
  if (pipeline.size() == 1) return pipeline;
  if (rank != pipeline.front() && rank != pipeline.back()) return {};
  return {pipeline.front(), pipeline.back()};
}

std::vector<int> Mesh::replica_ranks(const AxisSet& axes, int rank, const std::vector<int>& places) const {
  if (!axes.contains(Axis::kPp)) return ranks_of(axes, rank);
  std::vector<int> holders = embedding_ranks(rank);
  if (!places.empty()) {
    const std::vector<int> pipeline = ranks_of(Axis::kPp, rank);
    holders.clear();
    for (const int place : places) holders.push_back(pipeline.at(static_cast<size_t>(place)));
  }
  MEGALITH_CHECK(std::find(holders.begin(), holders.end(), rank) != holders.end(),
                 "rank {} is on a stage that holds no replica", rank);
  std::vector<int> ranks;
  for (const int holder : holders) {
    const std::vector<int> some = ranks_of(axes.without(Axis::kPp), holder);
    ranks.insert(ranks.end(), some.begin(), some.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string Mesh::describe(int rank) const {
  std::string text = fmt::format("rank {}", rank);
  for (const Axis axis : {Axis::kDp, Axis::kCp, Axis::kTp, Axis::kPp, Axis::kEp}) {
    if (size(axis) > 1) text += fmt::format(" {}{}", name_of(axis), coordinate(axis, rank));
  }
  return text;
}

}  // namespace megalith

#include "verify/distribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace megalith {
namespace {

struct ByteSpan {
  int64_t begin = 0, end = 0;
};

// From the first to the last byte, gaps included.
ByteSpan bytes_of_view(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto size = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * size;
  return {begin, begin + (last + 1) * size};
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

void strengthen(Distribution& type, const Distribution& other) {
  for (size_t axis = 0; axis < kMostTypeAxes; ++axis) {
    if (other.spread[axis] <= type.spread[axis]) continue;
    type.spread[axis] = other.spread[axis];
    type.cut[axis] = other.cut[axis];
    type.place[axis] = other.place[axis];
  }
}

}  // namespace

std::string_view text_of(Spread spread) {
  switch (spread) {
    case Spread::kAny:
      return "anything";
    case Spread::kSame:
    case Spread::kShared:
      return "the same on all ranks";
    case Spread::kVarying:
      return "each rank's own";
    case Spread::kPartial:
      return "a summand of each rank";
  }
  return "?";
}

void Distribution::set(AxisBits axes, Spread to, int at) {
  for (size_t axis = 0; axis < kMostTypeAxes; ++axis) {
    if (((axes >> axis) & 1U) == 0) continue;
    spread[axis] = to;
    place[axis] = at;
    if (to != Spread::kVarying) cut[axis] = WeightCut::kNone;
  }
}

bool Distribution::is_known() const {
  return std::any_of(spread.begin(), spread.end(), [](Spread one) { return one != Spread::kAny; });
}

// ---- Axes ----

TypeAxes::TypeAxes(const Mesh& mesh, int rank)
    : mesh_(mesh), rank_(rank), ranks_per_stage_(mesh.world_size() / mesh.size(Axis::kPp)) {
  std::set<int> cuts = {1, ranks_per_stage_};
  const auto add_chain = [&](std::initializer_list<Axis> axes) {
    int end = 1;
    for (const Axis axis : axes) cuts.insert(end *= mesh.size(axis));
  };
  add_chain({Axis::kTp, Axis::kCpUlysses, Axis::kCpRing, Axis::kDpShard});
  add_chain({Axis::kEtp, Axis::kEp, Axis::kEdpShard});
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const int next = *std::next(cut);
    if (next % *cut != 0) {
      throw UserError(
          fmt::format("types of these sizes are not known: runs of {} ranks (tp {}, cp {}) and of {} (etp {}, ep {}) "
                      "overlap",
                      *cut, mesh.size(Axis::kTp), mesh.size(Axis::kCp), next, mesh.size(Axis::kEtp),
                      mesh.size(Axis::kEp)),
          "doctor --parallel checks this layout with numbers");
    }
    pieces_.push_back({.name = {}, .stride = *cut, .size = next / *cut});
  }
  MEGALITH_CHECK(count() < kPipelineAxis, "{} axes", count());
  for (int i = 0; i < count(); ++i) {
    std::vector<std::string_view> names;
    for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kEtp, Axis::kEp}) {
      if (((of(axis) >> i) & 1U) != 0) names.push_back(name_of(axis));
    }
    // Experts are cut as dense layers are, or over a part of them.
    if (names.size() > 1 && mesh.size(Axis::kEp) == 1) names.resize(1);
    pieces_[static_cast<size_t>(i)].name = fmt::format("{}", fmt::join(names, "/"));
  }
}

AxisBits TypeAxes::between(int begin, int end) const {
  AxisBits bits = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].stride >= begin && pieces_[i].stride < end) bits |= AxisBits{1} << i;
  }
  return bits;
}

AxisBits TypeAxes::of(const AxisSet& axes) const {
  const int tp = mesh_.size(Axis::kTp), cp = mesh_.size(Axis::kCp), etp = mesh_.size(Axis::kEtp),
            ep = mesh_.size(Axis::kEp);
  const int ulysses = tp * mesh_.size(Axis::kCpUlysses), shard = tp * cp * mesh_.size(Axis::kDpShard),
            expert_shard = etp * ep * mesh_.size(Axis::kEdpShard);
  const std::pair<Axis, AxisBits> all_of[] = {{Axis::kTp, between(1, tp)},
                                              {Axis::kCp, between(tp, tp * cp)},
                                              {Axis::kCpUlysses, between(tp, ulysses)},
                                              {Axis::kCpRing, between(ulysses, tp * cp)},
                                              {Axis::kDp, between(tp * cp, ranks_per_stage_)},
                                              {Axis::kDpShard, between(tp * cp, shard)},
                                              {Axis::kDpReplicate, between(shard, ranks_per_stage_)},
                                              {Axis::kEtp, between(1, etp)},
                                              {Axis::kEp, between(etp, etp * ep)},
                                              {Axis::kEdp, between(etp * ep, ranks_per_stage_)},
                                              {Axis::kEdpShard, between(etp * ep, expert_shard)},
                                              {Axis::kEdpReplicate, between(expert_shard, ranks_per_stage_)}};
  AxisBits bits = 0;
  for (const auto& [axis, own] : all_of) {
    if (axes.contains(axis)) bits |= own;
  }
  if (axes.contains(Axis::kPp) && mesh_.size(Axis::kPp) > 1) bits |= AxisBits{1} << kPipelineAxis;
  return bits;
}

int TypeAxes::local_index(int rank) const {
  const int tp = mesh_.size(Axis::kTp), cp = mesh_.size(Axis::kCp);
  return mesh_.coordinate(Axis::kTp, rank) +
         tp * (mesh_.coordinate(Axis::kCp, rank) + cp * mesh_.coordinate(Axis::kDp, rank));
}

AxisBits TypeAxes::of(const std::vector<int>& ranks) const {
  const int own = local_index(rank_);
  AxisBits bits = 0;
  for (const int rank : ranks) {
    const int other = local_index(rank);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto [name, stride, size] = pieces_[i];
      if (own / stride % size != other / stride % size) bits |= AxisBits{1} << i;
    }
    if (mesh_.coordinate(Axis::kPp, rank) != mesh_.coordinate(Axis::kPp, rank_)) bits |= AxisBits{1} << kPipelineAxis;
  }
  return bits;
}

std::string TypeAxes::name(int axis) const {
  return axis == kPipelineAxis ? "pp" : pieces_[static_cast<size_t>(axis)].name;
}

std::string TypeAxes::text(AxisBits axes) const {
  std::vector<std::string> names;
  for (int axis = 0; axis < kMostTypeAxes; ++axis) {
    if (((axes >> axis) & 1U) != 0) names.push_back(name(axis));
  }
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

int TypeAxes::neighbour(int axis) const {
  const Piece& piece = pieces_[static_cast<size_t>(axis)];
  const int own = local_index(rank_), place = own / piece.stride % piece.size;
  const int local = own + ((place + 1) % piece.size - place) * piece.stride;
  const int tp = mesh_.size(Axis::kTp), cp = mesh_.size(Axis::kCp);
  return mesh_.rank_at(local % tp, local / tp % cp, local / (tp * cp), mesh_.coordinate(Axis::kPp, rank_));
}

// ---- Tensors ----

Distribution TypeStore::of(const at::Tensor& tensor) const {
  Distribution type;
  const auto found = entries_.find(storage_of(tensor));
  if (found == entries_.end()) return type;
  const ByteSpan span = bytes_of_view(tensor);
  for (const Run& run : found->second.runs) {
    if (run.begin < span.end && span.begin < run.end) strengthen(type, run.type);
  }
  return type;
}

void TypeStore::assign(std::vector<Run>& runs, const Run& run) {
  std::vector<Run> result;
  for (const Run& old : runs) {
    if (old.begin < run.begin) result.push_back({old.begin, std::min(old.end, run.begin), old.type});
    if (old.end > run.end) result.push_back({std::max(old.begin, run.end), old.end, old.type});
  }
  result.push_back(run);
  std::sort(result.begin(), result.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  runs = std::move(result);
}

void TypeStore::set(const at::Tensor& tensor, const Distribution& type) {
  const ByteSpan span = bytes_of_view(tensor);
  if (storage_of(tensor) == nullptr || span.begin == span.end) return;
  Distribution stored = type;
  // Parts with gaps between them, as heads of a projection: others may be there.
  if (!tensor.is_non_overlapping_and_dense()) strengthen(stored, of(tensor));
  set_runs(tensor, {{0, span.end - span.begin, stored}});
}

std::vector<TypeStore::Run> TypeStore::runs(const at::Tensor& tensor) const {
  const ByteSpan span = bytes_of_view(tensor);
  std::vector<Run> own;
  int64_t next = span.begin;
  const auto add = [&](int64_t begin, int64_t end, const Distribution& type) {
    if (begin < end) own.push_back({begin - span.begin, end - span.begin, type});
  };
  const auto found = entries_.find(storage_of(tensor));
  if (found != entries_.end()) {
    for (const Run& run : found->second.runs) {
      const int64_t begin = std::max(run.begin, span.begin), end = std::min(run.end, span.end);
      if (begin >= end) continue;
      add(next, begin, {});
      add(begin, end, run.type);
      next = end;
    }
  }
  add(next, span.end, {});
  return own;
}

void TypeStore::set_runs(const at::Tensor& tensor, const std::vector<Run>& runs, int64_t first) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  const int64_t begin = bytes_of_view(tensor).begin + first;
  const auto entry = entries_.try_emplace(storage, Entry{tensor.storage().getWeakStorageImpl(), {}}).first;
  for (const Run& run : runs) assign(entry->second.runs, {begin + run.begin, begin + run.end, run.type});
}

}  // namespace megalith

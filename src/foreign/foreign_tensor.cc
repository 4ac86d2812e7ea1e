#include "foreign/foreign_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

// Without making the common box: each of a thousand ranks' parts is compared with all others.
bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    if (begin >= std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d])) return false;
  }
  return true;
}

// Adds the part of a piece that a shard holds.
void add_shard(CanonicalStore& store, const ForeignTensor::Shard& shard, const ForeignPiece& found) {
  const auto& [piece, in_foreign, dims] = found;
  const Box common = intersect(shard.box, in_foreign);
  if (common.is_empty()) return;
  Box in_shard = common;
  for (size_t d = 0; d < common.offset.size(); ++d) in_shard.offset[d] -= shard.box.offset[d];
  CanonicalTensor::Part part{.box = piece.canonical, .stored = sub_tensor(shard.stored, in_shard)};
  const std::vector<int64_t> strides = std::exchange(part.stored.strides, {});
  for (size_t d = 0; d < dims.size(); ++d) {
    part.box.offset[d] += common.offset[dims[d]] - in_foreign.offset[dims[d]];
    part.box.extent[d] = common.extent[dims[d]];
    part.stored.strides.push_back(strides[dims[d]]);
  }
  part.stored.shape = part.box.extent;
  store[piece.name].add(piece.name, piece.shape, std::move(part));
}

}  // namespace

int64_t CanonicalTensor::num_found() const {
  int64_t count = 0;
  for (const Part& part : parts) count += part.box.num_elements();
  return count;
}

void CanonicalTensor::add(const std::string& name, const std::vector<int64_t>& whole, Part part) {
  if (parts.empty()) shape = whole;
  const auto place = [](const Part& one) { return one.stored.file->path().string(); };
  if (shape != whole || (!parts.empty() && parts[0].stored.dtype != part.stored.dtype)) {
    throw UserError(
        fmt::format("{} has one shape or dtype in {} and another in {}", name, place(parts[0]), place(part)),
        "the files do not belong together: copy the whole checkpoint");
  }
  for (const Part& present : parts) {
    const FileTensor &a = present.stored, &b = part.stored;
    const bool is_same = a.file == b.file && a.offset == b.offset && a.strides == b.strides;
    if (is_same && present.box == part.box) return;
    if (!overlap(present.box, part.box)) continue;
    throw UserError(fmt::format("{} is both in {} and in {}", name, place(present), place(part)),
                    "the files do not belong together: copy the whole checkpoint");
  }
  parts.push_back(std::move(part));
}

Patch Patch::whole(const std::vector<int64_t>& shape) {
  Patch patch{.foreign = Box::whole(shape), .local = Box::whole(shape), .dims = std::vector<size_t>(shape.size())};
  std::iota(patch.dims.begin(), patch.dims.end(), size_t{0});
  return patch;
}

size_t ForeignLayout::num_leading_dims() const {
  return view.empty() ? shape.size() - places.at(0).patches.at(0).dims.size() : 0;
}

void for_each_piece(const Placement& placement, const Patch& patch,
                    const std::function<void(const ForeignPiece&)>& visit) {
  for (const Piece& whole : placement.pieces) {
    const Piece piece = restrict(whole, patch.local);
    if (piece.local.is_empty()) continue;
    ForeignPiece found{.piece = piece, .in_foreign = patch.foreign, .dims = std::vector<size_t>(piece.shape.size())};
    for (size_t d = 0; d < found.dims.size(); ++d) {
      found.in_foreign.offset[patch.dims[d]] += piece.local.offset[d] - patch.local.offset[d];
      found.in_foreign.extent[patch.dims[d]] = piece.local.extent[d];
      found.dims[d] = patch.dims[piece.other_dim(d)];
    }
    visit(found);
  }
}

void add_patches(CanonicalStore& store, const ForeignTensor& tensor, const ForeignLayout& layout) {
  for (const ForeignLayout::Place& place : layout.places) {
    for (const Patch& patch : place.patches) {
      for_each_piece(*place.placement, patch, [&](const ForeignPiece& piece) {
        for (const ForeignTensor::Shard& shard : tensor.shards) add_shard(store, shard, piece);
      });
    }
  }
}

}  // namespace megalith

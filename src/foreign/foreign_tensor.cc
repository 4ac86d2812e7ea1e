#include "foreign/foreign_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "checkpoint/fused_experts.h"
#include "core/error.h"
#include "foreign/canonical_model.h"

namespace megalith {
namespace {

// Adds the part of a piece that a shard holds.
void add_shard(TensorStore& store, const ForeignTensor::Shard& shard, const ForeignPiece& found) {
  const auto& [piece, in_foreign, dims] = found;
  const Box common = intersect(shard.box, in_foreign);
  if (common.is_empty()) return;
  Box in_shard = common;
  for (size_t d = 0; d < common.offset.size(); ++d) in_shard.offset[d] -= shard.box.offset[d];
  TensorStore::Part part{.box = piece.canonical, .stored = sub_tensor(shard.stored, in_shard)};
  const std::vector<int64_t> strides = std::exchange(part.stored.strides, {});
  for (size_t d = 0; d < dims.size(); ++d) {
    part.box.offset[d] += common.offset[dims[d]] - in_foreign.offset[dims[d]];
    part.box.extent[d] = common.extent[dims[d]];
    part.stored.strides.push_back(strides[dims[d]]);
  }
  part.stored.shape = part.box.extent;
  store.add(piece.name, piece.shape, std::move(part));
}

}  // namespace

std::vector<ForeignTensor::Shard> shards_of_run(const std::vector<int64_t>& shape, int64_t begin,
                                                const FileTensor& run) {
  const int64_t element = bits_of(run.dtype) / 8;
  std::vector<ForeignTensor::Shard> shards;
  int64_t offset = run.offset;
  for (Box& box : flat_range_boxes(shape, begin, begin + Box::whole(run.shape).num_elements())) {
    FileTensor part = run;
    part.shape = box.extent;
    part.strides = row_major(box.extent);
    part.num_bytes = box.num_elements() * element;
    part.offset = std::exchange(offset, offset + part.num_bytes);
    shards.push_back({std::move(box), std::move(part)});
  }
  return shards;
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

ForeignLayout fused_experts_layout(const CanonicalModel& model, std::string_view name) {
  ForeignLayout layout;
  struct Rows {
    int64_t expert, matrix;
  };
  std::map<std::string, Rows, std::less<>> matrices;
  int64_t num_matrices = 0;
  for (const bool is_mixtral : {false, true}) {
    for (int64_t expert = 0; model.config().has_experts() && expert < model.config().expert_count(); ++expert) {
      const std::vector<std::string> own = matrices_of_fused_expert(name, expert, is_mixtral);
      if (own.empty()) return layout;
      num_matrices = std::ssize(own);
      for (int64_t i = 0; i < num_matrices; ++i) matrices[own[static_cast<size_t>(i)]] = {expert, i};
    }
  }
  for (const Placement* placement : model.placements()) {
    for (const Piece& piece : placement->pieces) {
      const auto found = matrices.find(piece.name);
      if (found == matrices.end()) continue;
      const auto& [expert, matrix] = found->second;
      const int64_t rows = piece.shape.at(0), columns = piece.shape.at(1);
      layout.shape = {model.config().expert_count(), num_matrices * rows, columns};
      Patch patch{.foreign = {{expert, matrix * rows + piece.canonical.offset[0], piece.canonical.offset[1]},
                              {1, piece.canonical.extent[0], piece.canonical.extent[1]}},
                  .local = piece.local,
                  .dims = {1 + piece.other_dim(0), 1 + piece.other_dim(1)}};
      layout.places.push_back({placement, {std::move(patch)}});
    }
  }
  return layout;
}

void add_patches(TensorStore& store, const ForeignTensor& tensor, const ForeignLayout& layout) {
  for (const ForeignLayout::Place& place : layout.places) {
    for (const Patch& patch : place.patches) {
      for_each_piece(*place.placement, patch, [&](const ForeignPiece& piece) {
        for (const ForeignTensor::Shard& shard : tensor.shards) add_shard(store, shard, piece);
      });
    }
  }
}

}  // namespace megalith

// A rank's tensor in terms of canonical tensors, which have Hugging Face's names, shapes and meaning.
//
// A fused q|k|v, a tp slice, an expert or a flat shard is a list of pieces, each pairing a box of a canonical tensor
// with a box of the local one. Initialisation, checkpoints, import and export, and the gradient norm's de-duplication
// read nothing else. Elements of no piece are padding: zero, without gradient, norm or decay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

struct Box {
  std::vector<int64_t> offset, extent;

  static Box whole(const std::vector<int64_t>& shape);
  int64_t num_elements() const;
  bool is_empty() const { return num_elements() == 0; }
  bool operator==(const Box&) const = default;
};

// Has a 0 extent if empty.
Box intersect(const Box& a, const Box& b);

// A ZeRO or FSDP shard: a run of a row-major local tensor.
struct FlatRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// At most 2 * dims - 1 boxes, in order.
std::vector<Box> flat_range_boxes(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

struct Piece {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  Box canonical;
  Box local;  // same extents (transposed: the last two swapped)
  // The canonical tensor swaps the last two dims: GPT-2's matrices, gpt-oss's experts.
  bool is_transposed = false;
  std::vector<std::string> aliases = {};  // in files (a tied lm_head.weight)

  // The canonical dim of a local one, or reverse.
  size_t other_dim(size_t dim) const {
    const size_t dims = shape.size();
    return is_transposed && dim + 2 >= dims ? 2 * dims - 3 - dim : dim;
  }
};

Piece restrict(const Piece& piece, const Box& local_box);

struct Placement {
  std::vector<int64_t> local_shape;
  std::vector<Piece> pieces;
  // Ranks along these hold equal values; along pp, those at pipeline_ranks.
  AxisSet replica_axes = {};
  AxisSet partial_axes = {};  // to sum gradients over: dp and cp if dense, tp for norms under sequence parallelism
  // Pipeline ranks with this parameter, ascending; empty: both ends.
  std::vector<int> pipeline_ranks = {};

  static Placement whole(std::string name, std::vector<int64_t> shape);

  int64_t num_local_elements() const;      // with padding
  int64_t num_canonical_elements() const;  // without
};

std::vector<Box> padding_boxes(const Placement& placement);

// InternalError unless boxes fit their tensors and local boxes are disjoint.
void check_placement(const Placement& placement);

}  // namespace megalith

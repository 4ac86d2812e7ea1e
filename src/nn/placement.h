// Placement: what a rank's tensor is, in terms of canonical tensors, which are Hugging Face's by name, shape and
// meaning.
//
// A rank may hold a fused q|k|v, a tensor-parallel slice, one expert of 256 or a flat shard: each is a list of pieces,
// and a piece pairs a box of a canonical tensor with the box of the local tensor that holds it. Initialisation,
// checkpoints, resharding, import and export, and the de-duplication of the gradient norm read nothing else.
// Rows of a local tensor that belong to no piece are padding: zero, without gradient, norm or decay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

// An axis-aligned box of a tensor: offset and extent in each dimension.
struct Box {
  std::vector<int64_t> offset, extent;

  static Box whole(const std::vector<int64_t>& shape);
  int64_t num_elements() const;
  bool is_empty() const { return num_elements() == 0; }
  bool operator==(const Box&) const = default;
};

// The common part of two boxes of one tensor; extent 0 in some dimension when there is none.
Box intersect(const Box& a, const Box& b);

// A run [begin, end) of a row-major flattened local tensor: a ZeRO or FSDP shard.
struct FlatRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// A run [begin, end) of a row-major flattened tensor of this shape, as boxes that cover it exactly and in order; at
// most 2 * dims - 1 of them. A flat ZeRO or FSDP shard becomes boxes here.
std::vector<Box> flat_range_boxes(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

struct Piece {
  std::string name;            // canonical: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // of the whole canonical tensor
  Box canonical;               // which part of it
  Box local;                   // where it lies in the local tensor; same extents (transposed: the last two exchanged)
  // The canonical (file's) tensor has the last two dims the other way round: GPT-2's matrices, gpt-oss's of all
  // experts.
  bool is_transposed = false;
  std::vector<std::string> aliases = {};  // other names under which files carry the same tensor (a tied lm_head.weight)

  // The dim of the canonical tensor that lies along a dim of the local one; and the other way round.
  size_t other_dim(size_t dim) const {
    const size_t dims = shape.size();
    return is_transposed && dim + 2 >= dims ? 2 * dims - 3 - dim : dim;
  }
};

// The part of a piece whose local box lies in `local_box` (in coordinates of the local tensor).
Piece restrict(const Piece& piece, const Box& local_box);

struct Placement {
  std::vector<int64_t> local_shape;
  std::vector<Piece> pieces;
  // Every rank along these axes holds the same values; along pp only those at pipeline_ranks.
  AxisSet replica_axes = {};
  AxisSet partial_axes = {};  // each rank's gradient is a part of a sum over these axes: dp and cp for a dense
                              // parameter, and tp for a norm under sequence parallelism
  // The places in the pipeline of a parameter that several stages hold, ascending: where an axis set names pp. None:
  // its two ends.
  std::vector<int> pipeline_ranks = {};

  // The whole canonical tensor, held as it is.
  static Placement whole(std::string name, std::vector<int64_t> shape);

  int64_t num_local_elements() const;      // with padding
  int64_t num_canonical_elements() const;  // without
};

// The elements of a local tensor that belong to no piece, as boxes; empty for most.
std::vector<Box> padding_boxes(const Placement& placement);

// InternalError unless every piece's boxes fit their tensors and no two local boxes overlap.
void check_placement(const Placement& placement);

}  // namespace megalith

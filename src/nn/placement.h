// Placement: a rank's tensor in terms of canonical tensors, which have Hugging Face's names, shapes and meaning.
//
// A fused q|k|v, a tensor-parallel slice, one expert of 256 or a flat shard is a list of pieces, each pairing a box of
// a canonical tensor with the box of the local tensor that holds it. Initialisation, checkpoints, resharding, import
// and export, and the de-duplication of the gradient norm read nothing else. Local rows of no piece are padding: zero,
// without gradient, norm or decay.
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

// Extent 0 in some dimension if the intersection is empty.
Box intersect(const Box& a, const Box& b);

// A ZeRO or FSDP shard: a run [begin, end) of a row-major flattened local tensor.
struct FlatRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// Boxes that cover a run [begin, end) of a row-major flattened tensor exactly and in order, at most 2 * dims - 1.
std::vector<Box> flat_range_boxes(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

struct Piece {
  std::string name;            // canonical: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  Box canonical;
  Box local;  // in the local tensor; same extents (transposed: the last two exchanged)
  // The canonical tensor has the last two dims swapped: GPT-2's matrices, gpt-oss's stacked experts.
  bool is_transposed = false;
  std::vector<std::string> aliases = {};  // other names of the same tensor in files (a tied lm_head.weight)

  // The canonical dim of a local one, and vice versa.
  size_t other_dim(size_t dim) const {
    const size_t dims = shape.size();
    return is_transposed && dim + 2 >= dims ? 2 * dims - 3 - dim : dim;
  }
};

// The part of a piece within `local_box`.
Piece restrict(const Piece& piece, const Box& local_box);

struct Placement {
  std::vector<int64_t> local_shape;
  std::vector<Piece> pieces;
  // All ranks along these axes hold the same values; along pp only those at pipeline_ranks.
  AxisSet replica_axes = {};
  AxisSet partial_axes = {};  // each rank's gradient is a part of a sum over these: dp and cp if dense, tp for norms
                              // under sequence parallelism
  // If an axis set names pp: the pipeline ranks that hold the parameter, ascending. None: both ends.
  std::vector<int> pipeline_ranks = {};

  static Placement whole(std::string name, std::vector<int64_t> shape);

  int64_t num_local_elements() const;      // with padding
  int64_t num_canonical_elements() const;  // without
};

std::vector<Box> padding_boxes(const Placement& placement);

// InternalError unless every piece's boxes fit their tensors and no two local boxes overlap.
void check_placement(const Placement& placement);

}  // namespace megalith

// What a rank writes of canonical tensors, made of the views of its tensors (optim/piece_views.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/placement.h"
#include "optim/piece_views.h"

namespace megalith {

// The largest box of a canonical tensor that this rank can write: consecutive views of a fused q|k|v become one q_proj
// again.
struct Chunk {
  std::string name;            // of the canonical tensor
  std::vector<int64_t> shape;  // of the canonical tensor
  Box box;
  at::ScalarType dtype = at::kFloat;
  std::vector<PieceView> parts;  // covering the box

  bool is_whole() const { return box == Box::whole(shape); }
  int64_t num_bytes() const;
};

// The views, joined where boxes of one canonical tensor touch, in order of first appearance; repeated boxes count once.
// InternalError for views of one name that differ in shape or dtype or overlap.
std::vector<Chunk> make_chunks(std::span<const PieceView> views);

// A copy in host memory, which training cannot change. `buffer` is reused if it fits, else replaced. Returns once the
// values are copied.
Chunk copy_to_host(const Chunk& chunk, at::Tensor& buffer);

// Visits the chunk's values in row-major order, at most `max_bytes` (at least one element) at a time: visit(box in the
// canonical tensor, contiguous CPU tensor of dtype, valid until visit returns).
void for_each_block(const Chunk& chunk, at::ScalarType dtype, int64_t max_bytes,
                    const std::function<void(const Box&, const at::Tensor&)>& visit);

// The contiguous runs of a box in a row-major tensor of this shape, in order: visit(first element in the tensor, first
// element in the box, number of elements).
void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit);

}  // namespace megalith

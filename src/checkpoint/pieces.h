// Canonical tensors that a rank writes, made of its tensors' views (optim/piece_views.h).
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

// The largest box that this rank can write: a fused q|k|v's views become one q_proj.
struct Chunk {
  std::string name;            // canonical
  std::vector<int64_t> shape;  // the whole tensor's
  Box box;
  at::ScalarType dtype = at::kFloat;
  std::vector<PieceView> parts;  // cover the box

  bool is_whole() const { return box == Box::whole(shape); }
  int64_t num_bytes() const;
};

// Joins touching boxes of a tensor, in order of first appearance, repeated ones once. InternalError if views of one
// name differ in shape or dtype or overlap.
std::vector<Chunk> make_chunks(std::span<const PieceView> views);

// In host memory, which training cannot change. Reuses `buffer` if it fits, else replaces it. Returns once copied.
Chunk copy_to_host(const Chunk& chunk, at::Tensor& buffer);

// In row-major order, at most `max_bytes` (at least an element) each: visit(box in the canonical tensor, contiguous CPU
// tensor of dtype, valid until it returns).
void for_each_block(const Chunk& chunk, at::ScalarType dtype, int64_t max_bytes,
                    const std::function<void(const Box&, const at::Tensor&)>& visit);

// A box's contiguous runs in a row-major tensor, in order: visit(first element in the tensor, in the box, count).
void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit);

}  // namespace megalith

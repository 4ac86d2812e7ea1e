// A rank's tensor seen as boxes of canonical tensors: the one form in which checkpoints, export and import see a model.
//
// PieceView  a piece of a Placement with the memory that holds it: a strided view in canonical orientation
// Chunk      the largest box of one canonical tensor that this rank can write: the views of a fused q|k|v that
//            follow one another become one q_proj again
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/placement.h"
#include "optim/stored_form.h"

namespace megalith {

struct PieceView {
  Piece piece;                                    // piece.canonical: the box of the canonical tensor that this is
  at::Tensor tensor;                              // of that box's extents; shares the local tensor's memory
  std::optional<StoredForm> form = std::nullopt;  // of parts that are such views, where files hold another form

  at::ScalarType stored_dtype() const { return form ? form->dtype : tensor.scalar_type(); }
};

// local  of placement.local_shape; with a range, one-dimensional of end - begin elements; the form's parts likewise
// Padding is in no view. In the order of the placement's pieces.
std::vector<PieceView> piece_views(const Placement& placement, const at::Tensor& local,
                                   const std::optional<FlatRange>& range = std::nullopt,
                                   const std::optional<StoredForm>& form = std::nullopt);

struct Chunk {
  std::string name;            // of the canonical tensor
  std::vector<int64_t> shape;  // of the canonical tensor
  Box box;                     // which part of it
  at::ScalarType dtype = at::kFloat;
  std::vector<PieceView> parts;  // cover the box

  bool is_whole() const { return box == Box::whole(shape); }
  int64_t num_bytes() const;
};

// The views, joined where boxes of one canonical tensor are neighbours, in order of first appearance. A box that
// appears twice is taken once. InternalError when views of one name differ in shape or dtype or overlap.
std::vector<Chunk> make_chunks(std::span<const PieceView> views);

// The same chunk in memory of its own on the host, which training may not change. `buffer` is reused when it fits, and
// replaced when not. Returns once the values are copied.
Chunk copy_to_host(const Chunk& chunk, at::Tensor& buffer);

// The chunk's values in row-major order, `max_bytes` at a time at most (but at least one element): calls
// visit(box in the canonical tensor, contiguous CPU tensor of dtype). The tensor lives until visit returns.
void for_each_block(const Chunk& chunk, at::ScalarType dtype, int64_t max_bytes,
                    const std::function<void(const Box&, const at::Tensor&)>& visit);

// The runs in which a box lies in a row-major tensor of this shape, in order: calls visit(first element in the
// tensor, first element in the box, number of elements).
void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit);

// The part of `tensor` that is `box`, where element 0 of the tensor lies at `origin`. A view.
at::Tensor slice_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin);

}  // namespace megalith

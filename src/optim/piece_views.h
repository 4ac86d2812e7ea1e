// A rank's tensor as boxes of canonical tensors, for checkpoints, export, import and rules over whole tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "nn/placement.h"
#include "optim/stored_form.h"

namespace megalith {

// A piece of a Placement: a strided view in canonical orientation.
struct PieceView {
  Piece piece;                                    // piece.canonical: its box of the canonical tensor
  at::Tensor tensor;                              // of the box's extents; shares the local tensor's memory
  std::optional<StoredForm> form = std::nullopt;  // views of its parts, if the stored form differs

  at::ScalarType stored_dtype() const { return form ? form->dtype : tensor.scalar_type(); }
};

// local  of placement.local_shape; with a range, 1-d of end - begin elements; likewise the form's parts
// In the order of the placement's pieces, without padding.
std::vector<PieceView> piece_views(const Placement& placement, const at::Tensor& local,
                                   const std::optional<FlatRange>& range = std::nullopt,
                                   const std::optional<StoredForm>& form = std::nullopt);

// The view of `tensor` that is `box`; element 0 of the tensor is at `origin`.
at::Tensor slice_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin);

}  // namespace megalith

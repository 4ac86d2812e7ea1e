#include "optim/piece_views.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

PieceView view_of(Piece piece, const at::Tensor& holder, const std::vector<int64_t>& origin) {
  at::Tensor view = slice_box(holder, piece.local, origin);
  if (piece.is_transposed) view = view.transpose(-2, -1);
  return {std::move(piece), std::move(view)};
}

}  // namespace

at::Tensor slice_box(const at::Tensor& tensor, const Box& box, const std::vector<int64_t>& origin) {
  at::Tensor view = tensor;
  for (size_t d = 0; d < box.offset.size(); ++d) {
    view = view.narrow(static_cast<int64_t>(d), box.offset[d] - origin[d], box.extent[d]);
  }
  return view;
}

std::vector<PieceView> piece_views(const Placement& placement, const at::Tensor& local,
                                   const std::optional<FlatRange>& range, const std::optional<StoredForm>& form) {
  const at::NoGradGuard no_grad;
  std::vector<PieceView> views;
  if (form) {
    views = piece_views(placement, local, range);
    for (PieceView& view : views) view.form = StoredForm{form->dtype, {}, form->join, form->split};
    for (const at::Tensor& part : form->parts) {
      const std::vector<PieceView> of_part = piece_views(placement, part, range);
      for (size_t i = 0; i < views.size(); ++i) views[i].form->parts.push_back(of_part[i].tensor);
    }
    return views;
  }
  if (!range) {
    MEGALITH_CHECK(local.sizes() == at::IntArrayRef(placement.local_shape), "local tensor [{}], placement [{}]",
                   fmt::join(local.sizes(), ", "), fmt::join(placement.local_shape, ", "));
    const std::vector<int64_t> origin(placement.local_shape.size(), 0);
    for (const Piece& piece : placement.pieces) {
      if (!piece.canonical.is_empty()) views.push_back(view_of(piece, local, origin));
    }
    return views;
  }
  MEGALITH_CHECK(local.dim() == 1 && local.numel() == range->end - range->begin,
                 "local tensor [{}] for the range [{}, {})", fmt::join(local.sizes(), ", "), range->begin, range->end);
  const std::vector<Box> boxes = flat_range_boxes(placement.local_shape, range->begin, range->end);
  for (const Piece& piece : placement.pieces) {
    int64_t begin = 0;
    for (const Box& box : boxes) {
      Piece part = restrict(piece, box);
      const int64_t num_elements = box.num_elements();
      if (!part.canonical.is_empty()) {
        views.push_back(view_of(std::move(part), local.narrow(0, begin, num_elements).view(box.extent), box.offset));
      }
      begin += num_elements;
    }
  }
  return views;
}

}  // namespace megalith

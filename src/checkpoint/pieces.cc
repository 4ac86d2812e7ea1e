#include "checkpoint/pieces.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "tensor_files/outline.h"

namespace megalith {
namespace {

// If they touch and agree in all other dimensions.
bool try_join(Box& a, const Box& b) {
  std::optional<size_t> seam;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] == b.offset[d] && a.extent[d] == b.extent[d]) continue;
    if (seam) return false;
    seam = d;
  }
  if (!seam) return false;
  const size_t d = *seam;
  if (a.offset[d] + a.extent[d] != b.offset[d] && b.offset[d] + b.extent[d] != a.offset[d]) return false;
  a.offset[d] = std::min(a.offset[d], b.offset[d]);
  a.extent[d] += b.extent[d];
  return true;
}

Box bounding_box(const std::vector<Box>& boxes) {
  Box bound = boxes.front();
  for (size_t d = 0; d < bound.offset.size(); ++d) {
    int64_t begin = bound.offset[d], end = begin + bound.extent[d];
    for (const Box& box : boxes) {
      begin = std::min(begin, box.offset[d]);
      end = std::max(end, box.offset[d] + box.extent[d]);
    }
    bound.offset[d] = begin;
    bound.extent[d] = end - begin;
  }
  return bound;
}

std::vector<Box> join_boxes(std::vector<Box> boxes) {
  // Usually they fill a box together.
  const Box bound = bounding_box(boxes);
  int64_t num_elements = 0;
  for (const Box& box : boxes) num_elements += box.num_elements();
  if (num_elements == bound.num_elements()) return {bound};
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.offset < b.offset; });
  for (bool has_joined = true; has_joined;) {
    has_joined = false;
    std::vector<Box> joined;
    for (const Box& box : boxes) {
      if (!joined.empty() && try_join(joined.back(), box)) {
        has_joined = true;
      } else {
        joined.push_back(box);
      }
    }
    boxes = std::move(joined);
  }
  return boxes;
}

// A view of the stored values, or computed by a form.
at::Tensor stored_values(const PieceView& view, const Box& box) {
  const std::vector<int64_t>& origin = view.piece.canonical.offset;
  if (!view.form) return values_of(slice_box(view.tensor, box, origin));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : view.form->parts) parts.push_back(slice_box(part, box, origin));
  return view.form->join(parts);
}

// No copy if one part holds it as requested.
at::Tensor read_block(const Chunk& chunk, const Box& block, at::ScalarType dtype) {
  at::Tensor result;
  int64_t num_filled = 0;
  for (const PieceView& part : chunk.parts) {
    const Box common = intersect(part.piece.canonical, block);
    if (common.is_empty()) continue;
    const at::Tensor source = stored_values(part, common);
    if (common == block && source.is_cpu() && source.scalar_type() == dtype && source.is_contiguous()) return source;
    if (!result.defined()) result = at::empty(block.extent, at::TensorOptions().dtype(dtype));
    slice_box(result, common, block.offset).copy_(source);
    num_filled += common.num_elements();
  }
  MEGALITH_CHECK(num_filled == block.num_elements(), "{}: {} of {} elements found", chunk.name, num_filled,
                 block.num_elements());
  return result;
}

}  // namespace

int64_t Chunk::num_bytes() const { return box.num_elements() * static_cast<int64_t>(c10::elementSize(dtype)); }

std::vector<Chunk> make_chunks(std::span<const PieceView> views) {
  std::map<std::string_view, size_t> group_of;
  std::vector<std::vector<const PieceView*>> groups;
  for (const PieceView& view : views) {
    const auto [entry, is_new] = group_of.emplace(view.piece.name, groups.size());
    if (is_new) groups.emplace_back();
    std::vector<const PieceView*>& group = groups[entry->second];
    MEGALITH_CHECK(
        group.empty() || (group[0]->piece.shape == view.piece.shape && group[0]->stored_dtype() == view.stored_dtype()),
        "{} is held with two shapes or dtypes", view.piece.name);
    const auto is_same = [&](const PieceView* other) { return other->piece.canonical == view.piece.canonical; };
    if (std::none_of(group.begin(), group.end(), is_same)) group.push_back(&view);
  }
  std::vector<Chunk> chunks;
  for (const std::vector<const PieceView*>& group : groups) {
    std::vector<Box> boxes;
    int64_t num_elements = 0, num_in_chunks = 0;
    for (const PieceView* view : group) {
      boxes.push_back(view->piece.canonical);
      num_elements += view->piece.canonical.num_elements();
    }
    for (Box& box : join_boxes(std::move(boxes))) {
      Chunk chunk{.name = group[0]->piece.name,
                  .shape = group[0]->piece.shape,
                  .box = std::move(box),
                  .dtype = group[0]->stored_dtype(),
                  .parts = {}};
      for (const PieceView* view : group) {
        const Box common = intersect(view->piece.canonical, chunk.box);
        if (common.is_empty()) continue;
        chunk.parts.push_back(*view);
        num_in_chunks += common.num_elements();
      }
      chunks.push_back(std::move(chunk));
    }
    MEGALITH_CHECK(num_in_chunks == num_elements, "pieces of {} overlap", group[0]->piece.name);
  }
  return chunks;
}

Chunk copy_to_host(const Chunk& chunk, at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  if (!buffer.defined() || buffer.scalar_type() != chunk.dtype || buffer.sizes() != at::IntArrayRef(chunk.box.extent)) {
    buffer = at::empty(chunk.box.extent, at::TensorOptions().dtype(chunk.dtype));
  }
  Piece whole{.name = chunk.name, .shape = chunk.shape, .canonical = chunk.box, .local = Box::whole(chunk.box.extent)};
  for (const PieceView& part : chunk.parts) {
    const Box common = intersect(part.piece.canonical, chunk.box);
    slice_box(buffer, common, chunk.box.offset).copy_(stored_values(part, common));
  }
  Chunk copy{.name = chunk.name, .shape = chunk.shape, .box = chunk.box, .dtype = chunk.dtype, .parts = {}};
  copy.parts.push_back({std::move(whole), buffer});
  return copy;
}

void for_each_block(const Chunk& chunk, at::ScalarType dtype, int64_t max_bytes,
                    const std::function<void(const Box&, const at::Tensor&)>& visit) {
  const at::NoGradGuard no_grad;
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const std::function<void(const Box&)> split = [&](const Box& box) {
    const int64_t num_elements = box.num_elements();
    if (num_elements == 0) return;
    const auto wide = std::find_if(box.extent.begin(), box.extent.end(), [](int64_t extent) { return extent > 1; });
    if (num_elements * element_bytes <= max_bytes || wide == box.extent.end()) {
      visit(box, read_block(chunk, box, dtype));
      return;
    }
    // The first dimension above one keeps blocks consecutive.
    const auto d = static_cast<size_t>(wide - box.extent.begin());
    const int64_t row_bytes = num_elements / *wide * element_bytes;
    const int64_t rows_per_block = std::max<int64_t>(1, max_bytes / row_bytes);
    for (int64_t row = 0; row < *wide; row += rows_per_block) {
      Box rows = box;
      rows.offset[d] += row;
      rows.extent[d] = std::min(rows_per_block, *wide - row);
      split(rows);
    }
  };
  split(chunk.box);
}

void for_each_run(const std::vector<int64_t>& shape, const Box& box,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  if (box.is_empty()) return;
  // Fully covered trailing dimensions extend the run.
  size_t first_in_run = shape.size();
  int64_t run = 1;
  while (first_in_run > 0) {
    --first_in_run;
    run *= box.extent[first_in_run];
    if (box.extent[first_in_run] != shape[first_in_run]) break;
  }
  std::vector<int64_t> index = box.offset;
  for (int64_t done = 0; done < box.num_elements(); done += run) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
    visit(flat, done, run);
    for (size_t d = first_in_run; d-- > 0;) {
      if (++index[d] < box.offset[d] + box.extent[d]) break;
      index[d] = box.offset[d];
    }
  }
}

}  // namespace megalith

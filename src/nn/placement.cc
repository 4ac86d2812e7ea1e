// The only place that relates canonical and local coordinates.
#include "nn/placement.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {

namespace {

int64_t product(const std::vector<int64_t>& extents) {
  int64_t result = 1;
  for (const int64_t extent : extents) result *= extent;
  return result;
}

bool fits(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.extent[d] < 0 || box.offset[d] + box.extent[d] > shape[d]) return false;
  }
  return true;
}

std::string text(const Box& box) {
  return fmt::format("[{}]+[{}]", fmt::join(box.offset, ","), fmt::join(box.extent, ","));
}

// Slabs of `box` around `hole`.
void subtract(const Box& box, const Box& hole, std::vector<Box>& out) {
  const Box common = intersect(box, hole);
  if (common.is_empty()) {
    if (!box.is_empty()) out.push_back(box);
    return;
  }
  Box rest = box;
  for (size_t d = 0; d < box.offset.size(); ++d) {
    const int64_t begin = rest.offset[d], end = begin + rest.extent[d];
    const int64_t hole_begin = common.offset[d], hole_end = hole_begin + common.extent[d];
    Box slab = rest;
    slab.extent[d] = hole_begin - begin;
    if (!slab.is_empty()) out.push_back(slab);
    slab.offset[d] = hole_end;
    slab.extent[d] = end - hole_end;
    if (!slab.is_empty()) out.push_back(slab);
    rest.offset[d] = hole_begin;
    rest.extent[d] = hole_end - hole_begin;
  }
}

void append_flat_range(const std::vector<int64_t>& shape, std::vector<int64_t>& index, int64_t begin, int64_t end,
                       std::vector<Box>& out) {
  if (begin == end) return;
  const size_t dim = index.size();
  Box box{index, std::vector<int64_t>(dim, 1)};
  const auto add_rows = [&](int64_t first, int64_t count) {
    if (count == 0) return;
    Box rows = box;
    rows.offset.push_back(first);
    rows.extent.push_back(count);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      rows.offset.push_back(0);
      rows.extent.push_back(shape[d]);
    }
    out.push_back(std::move(rows));
  };
  if (dim + 1 >= shape.size()) {
    if (shape.empty())
      out.push_back(box);
    else
      add_rows(begin, end - begin);
    return;
  }
  int64_t row_elements = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d) row_elements *= shape[d];
  const int64_t first = begin / row_elements, last = end / row_elements;
  const int64_t head = begin % row_elements, tail = end % row_elements;
  const auto add_part = [&](int64_t row, int64_t part_begin, int64_t part_end) {
    index.push_back(row);
    append_flat_range(shape, index, part_begin, part_end, out);
    index.pop_back();
  };
  if (first == last) return add_part(first, head, tail);
  if (head != 0) add_part(first, head, row_elements);
  const int64_t first_whole = first + (head != 0);
  add_rows(first_whole, last - first_whole);
  if (tail != 0) add_part(last, 0, tail);
}

}  // namespace

Box Box::whole(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

int64_t Box::num_elements() const { return product(extent); }

Box intersect(const Box& a, const Box& b) {
  MEGALITH_CHECK(a.offset.size() == b.offset.size(), "boxes {} and {} have different dims", text(a), text(b));
  Box common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    common.offset[d] = begin;
    common.extent[d] = std::max<int64_t>(0, end - begin);
  }
  return common;
}

std::vector<Box> flat_range_boxes(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  MEGALITH_CHECK(0 <= begin && begin <= end && end <= product(shape), "range [{}, {}) of a tensor of {} elements",
                 begin, end, product(shape));
  std::vector<Box> boxes;
  std::vector<int64_t> index;
  append_flat_range(shape, index, begin, end, boxes);
  return boxes;
}

Piece restrict(const Piece& piece, const Box& local_box) {
  Piece part = piece;
  part.local = intersect(piece.local, local_box);
  const size_t dims = part.local.offset.size();
  for (size_t d = 0; d < dims; ++d) {
    const size_t canonical_dim = piece.other_dim(d);
    part.canonical.offset[canonical_dim] =
        piece.canonical.offset[canonical_dim] + part.local.offset[d] - piece.local.offset[d];
    part.canonical.extent[canonical_dim] = part.local.extent[d];
  }
  return part;
}

Placement Placement::whole(std::string name, std::vector<int64_t> shape) {
  Placement placement;
  placement.local_shape = shape;
  placement.pieces.push_back({std::move(name), shape, Box::whole(shape), Box::whole(shape)});
  return placement;
}

int64_t Placement::num_local_elements() const { return product(local_shape); }

int64_t Placement::num_canonical_elements() const {
  int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.local.num_elements();
  return count;
}

std::vector<Box> padding_boxes(const Placement& placement) {
  std::vector<Box> rest = {Box::whole(placement.local_shape)};
  for (const Piece& piece : placement.pieces) {
    std::vector<Box> next;
    for (const Box& box : rest) subtract(box, piece.local, next);
    rest = std::move(next);
  }
  std::erase_if(rest, [](const Box& box) { return box.is_empty(); });
  return rest;
}

void check_placement(const Placement& placement) {
  for (size_t i = 0; i < placement.pieces.size(); ++i) {
    const Piece& piece = placement.pieces[i];
    MEGALITH_CHECK(fits(piece.canonical, piece.shape), "{}: box {} of shape ({})", piece.name, text(piece.canonical),
                   fmt::join(piece.shape, ", "));
    MEGALITH_CHECK(fits(piece.local, placement.local_shape), "{}: box {} of local shape ({})", piece.name,
                   text(piece.local), fmt::join(placement.local_shape, ", "));
    MEGALITH_CHECK(!piece.is_transposed || piece.shape.size() >= 2, "{}: a tensor of {} dims is kept transposed",
                   piece.name, piece.shape.size());
    std::vector<int64_t> extent = piece.canonical.extent;
    if (piece.is_transposed) std::swap(extent[extent.size() - 2], extent.back());
    MEGALITH_CHECK(extent == piece.local.extent, "{}: canonical box {} lies in local box {}", piece.name,
                   text(piece.canonical), text(piece.local));
    for (size_t j = 0; j < i; ++j) {
      const Piece& other = placement.pieces[j];
      MEGALITH_CHECK(intersect(piece.local, other.local).is_empty(), "{} and {} overlap: {} and {}", piece.name,
                     other.name, text(piece.local), text(other.local));
    }
  }
}

}  // namespace megalith

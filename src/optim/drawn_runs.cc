#include "optim/drawn_runs.h"

#include "core/philox.h"

namespace megalith {
namespace {

// Row-major.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// A box of consecutive elements of the local tensor, and the piece's share of it.
struct PlacedBox {
  const Box& outer;
  Piece piece;
};

// The box's runs from dim `dim` on; `element` and `place` are offsets of earlier indices.
void add_runs(const PlacedBox& box, size_t dim, int64_t element, int64_t place, std::vector<PartRun>& runs) {
  const std::vector<int64_t>& extent = box.piece.local.extent;
  const size_t dims = extent.size();
  const std::vector<int64_t> canonical = strides_of(box.piece.shape), local = strides_of(box.outer.extent);
  const auto stride_of = [&](size_t d) { return canonical[box.piece.other_dim(d)]; };
  const bool has_rows = dim + 2 == dims;
  const bool are_whole_rows = has_rows && extent[dim + 1] == box.outer.extent[dim + 1];
  if (dim + 1 >= dims || are_whole_rows) {
    const int64_t columns = dims == 0 ? 1 : extent[dims - 1], rows = are_whole_rows ? extent[dim] : 1;
    ops::DrawnRun drawn{.key = make_philox_key(0, "rounding." + box.piece.name),
                        .first = element,
                        .columns = columns,
                        .row_stride = are_whole_rows ? stride_of(dim) : 0,
                        .column_stride = dims == 0 ? 1 : stride_of(dims - 1)};
    if (rows == 1 || drawn.row_stride == columns * drawn.column_stride) drawn.columns = rows * columns;
    runs.push_back({{place, place + rows * columns}, drawn});
    return;
  }
  for (int64_t i = 0; i < extent[dim]; ++i) {
    add_runs(box, dim + 1, element + i * stride_of(dim), place + i * local[dim], runs);
  }
}

}  // namespace

std::vector<PartRun> drawn_runs(const OwnedPart& part) {
  const Placement& placement = part.parameter->placement();
  const std::vector<Box> boxes = part.range
                                     ? flat_range_boxes(placement.local_shape, part.range->begin, part.range->end)
                                     : std::vector<Box>{Box::whole(placement.local_shape)};
  std::vector<PartRun> runs;
  int64_t begin = 0;
  for (const Box& box : boxes) {
    for (const Piece& whole : placement.pieces) {
      const PlacedBox placed{box, restrict(whole, box)};
      if (placed.piece.local.is_empty()) continue;
      const std::vector<int64_t> canonical = strides_of(placed.piece.shape), local = strides_of(box.extent);
      int64_t element = 0, place = begin;
      for (size_t d = 0; d < canonical.size(); ++d) element += placed.piece.canonical.offset[d] * canonical[d];
      for (size_t d = 0; d < local.size(); ++d) place += (placed.piece.local.offset[d] - box.offset[d]) * local[d];
      add_runs(placed, 0, element, place, runs);
    }
    begin += box.num_elements();
  }
  return runs;
}

}  // namespace megalith

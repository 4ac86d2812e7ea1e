#include "optim/matrices.h"

#include <ATen/ATen.h>

#include <map>

#include "comm/groups.h"
#include "core/error.h"

namespace megalith {
namespace {

// A placement's piece in mathematical orientation; with three dims, one expert's.
struct OrientedPiece {
  std::string name;
  int64_t row, num_rows, all_rows;           // in the canonical matrix
  int64_t column, num_columns, all_columns;  // likewise
  int64_t local_row;
};

std::vector<OrientedPiece> oriented_pieces(const Parameter& parameter) {
  const Placement& placement = parameter.placement();
  const std::vector<int64_t>& shape = placement.local_shape;
  const size_t dims = shape.size();
  MEGALITH_CHECK(dims == 2 || dims == 3, "{} has {} dims and is no matrix", parameter.name(), dims);
  const int64_t num_experts = dims == 3 ? shape[0] : 1, all_rows = shape[dims - 2], all_columns = shape[dims - 1];
  std::vector<OrientedPiece> pieces;
  int64_t local_row = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    for (const Piece& piece : placement.pieces) {
      const Box &whole = piece.canonical, &local = piece.local;
      const size_t r = piece.other_dim(dims - 2), c = piece.other_dim(dims - 1);
      const bool has_all_experts = dims == 2 || (local.offset[0] == 0 && local.extent[0] == num_experts);
      const int64_t begin = expert * all_rows + local.offset[dims - 2];
      pieces.push_back({dims == 2 ? piece.name : fmt::format("{}[{}]", piece.name, whole.offset[0] + expert),
                        whole.offset[r], whole.extent[r], piece.shape[r], whole.offset[c], whole.extent[c],
                        piece.shape[c], begin});
      MEGALITH_CHECK(
          has_all_experts && begin == local_row && local.offset[dims - 1] == 0 && local.extent[dims - 1] == all_columns,
          "{}: {} does not begin at local row {}, or not all of its row is in one piece", parameter.name(), piece.name,
          local_row);
      local_row += local.extent[dims - 2];
    }
  }
  MEGALITH_CHECK(local_row == num_experts * all_rows, "{}: {} of {} local rows belong to a matrix", parameter.name(),
                 local_row, num_experts * all_rows);
  return pieces;
}

}  // namespace

int64_t SlicedMatrix::local_rows() const {
  int64_t count = 0;
  for (const Block& block : blocks) count += block.num_rows;
  return count;
}

void SlicedMatrix::put_slice(const at::Tensor& slice, int index, const at::Tensor& whole) const {
  const at::Tensor columns_of_slice = whole.narrow(1, cut == Cut::kColumns ? index * local_columns : 0, local_columns);
  int64_t local_row = 0;
  for (const Block& block : blocks) {
    const int64_t row = block.row + (cut == Cut::kRows ? index * block.num_rows : 0);
    columns_of_slice.narrow(0, row, block.num_rows).copy_(slice.narrow(0, local_row, block.num_rows));
    local_row += block.num_rows;
  }
}

at::Tensor SlicedMatrix::take_slice(const at::Tensor& whole, int index) const {
  if (cut == Cut::kNone) return whole.contiguous();
  const at::Tensor columns_of_slice = whole.narrow(1, cut == Cut::kColumns ? index * local_columns : 0, local_columns);
  std::vector<at::Tensor> rows_of_slice;
  for (const Block& block : blocks) {
    const int64_t row = block.row + (cut == Cut::kRows ? index * block.num_rows : 0);
    rows_of_slice.push_back(columns_of_slice.narrow(0, row, block.num_rows));
  }
  return at::cat(rows_of_slice).contiguous();
}

bool has_matrices(const Parameter& parameter) {
  const ParameterRole role = parameter.options().role;
  return role == ParameterRole::kMatrix || role == ParameterRole::kQkv || role == ParameterRole::kRouter;
}

Group& slice_group(const Parameter& parameter, const Groups& groups) {
  return *(parameter.placement().partial_axes.contains(Axis::kEdp) ? groups.etp : groups.tp);
}

std::vector<SlicedMatrix> sliced_matrices(const Parameter& parameter, int slice, int num_slices, bool joins_qkv) {
  using Cut = SlicedMatrix::Cut;
  const std::vector<OrientedPiece> pieces = oriented_pieces(parameter);
  // A canonical tensor may have several pieces (GPT-2's c_attn: q, k and v): count its rows here.
  std::map<std::string, int64_t> rows_here;
  for (const OrientedPiece& p : pieces) rows_here[p.name] += p.num_rows;

  std::vector<SlicedMatrix> matrices;
  std::map<std::string, int64_t> next_row;  // in the canonical tensor: start of its next piece, of slice 0
  const int64_t local_columns = parameter.placement().local_shape.back();
  for (const OrientedPiece& p : pieces) {
    const bool has_all_rows = rows_here[p.name] == p.all_rows, has_all_columns = p.num_columns == p.all_columns;
    const Cut cut = !has_all_rows ? Cut::kRows : !has_all_columns ? Cut::kColumns : Cut::kNone;
    const int64_t whole_rows = cut == Cut::kRows ? p.num_rows * num_slices : p.num_rows;
    const int64_t first_row = next_row[p.name];
    next_row[p.name] += whole_rows;
    MEGALITH_CHECK((has_all_rows || rows_here[p.name] * num_slices == p.all_rows) &&
                       (has_all_columns || (has_all_rows && p.num_columns * num_slices == p.all_columns)) &&
                       p.row == first_row + (cut == Cut::kRows ? slice * p.num_rows : 0) &&
                       p.column == (cut == Cut::kColumns ? slice * p.num_columns : 0),
                   "{}: {} is not slice {} of {} equal ones", parameter.name(), p.name, slice, num_slices);

    const FlatRange range{p.local_row * local_columns, (p.local_row + p.num_rows) * local_columns};
    const bool joins = joins_qkv && parameter.options().role == ParameterRole::kQkv && !matrices.empty();
    if (!joins) {
      matrices.push_back({.name = p.name,
                          .range = {range.begin, range.begin},
                          .columns = p.all_columns,
                          .local_columns = local_columns,
                          .cut = cut,
                          .num_slices = num_slices});
    }
    SlicedMatrix& matrix = matrices.back();
    MEGALITH_CHECK(matrix.cut == cut && matrix.columns == p.all_columns, "{}: its parts are cut in different ways",
                   parameter.name());
    matrix.blocks.push_back({matrix.rows, p.num_rows});
    matrix.rows += whole_rows;
    matrix.range.end = range.end;
  }
  return matrices;
}

}  // namespace megalith

// The matrices of a parameter, as an update of whole matrices needs them: canonical ones, in the orientation of
// mathematics (rows are outputs), however they are fused, transposed or cut. A tensor of all experts is a matrix for
// each.
//
//   local tensor of q|k|v on rank 1 of 2     whole matrices
//   rows  0…3   q  rows 4…7 of 8             q (8, h)
//   rows  4…5   k  rows 2…3 of 4             k (4, h)        each by itself, or the three stacked as one (16, h)
//   rows  6…7   v  rows 2…3 of 4             v (4, h)
//
// The ranks that share a matrix hold slices of equal size, of its rows or of its columns, in the order of their group.
// Everything is read from the Placement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace megalith {

class Group;
struct Groups;

struct SlicedMatrix {
  // Rows of the whole that one rank holds next to each other, seen from slice 0.
  struct Block {
    int64_t row = 0;       // in the whole matrix, of slice 0
    int64_t num_rows = 0;  // of one slice
  };
  enum class Cut { kNone, kRows, kColumns };

  std::string name;               // canonical, for messages and traces
  FlatRange range;                // in the flattened local tensor
  int64_t rows = 0, columns = 0;  // of the whole
  int64_t local_columns = 0;      // of a slice
  std::vector<Block> blocks;      // in the order of the local rows
  Cut cut = Cut::kNone;           // kNone: every rank of the group holds the whole
  int num_slices = 1;

  int64_t local_rows() const;
  // Copies a slice, (local_rows, local_columns), to its place in the whole, and out of it.
  void put_slice(const at::Tensor& slice, int index, const at::Tensor& whole) const;
  at::Tensor take_slice(const at::Tensor& whole, int index) const;  // contiguous
};

// Whether a parameter consists of matrices that take part in products with activations: weights of linear layers,
// experts and routers. Tables of embeddings and heads are none.
bool has_matrices(const Parameter& parameter);

// The ranks over which the parameter's matrices are sliced: tp, or etp for experts that have axes of their own.
Group& slice_group(const Parameter& parameter, const Groups& groups);

// In the order of the local rows. joins_qkv: queries, keys and values are one matrix.
// InternalError where the placement is not one of slices as above.
std::vector<SlicedMatrix> sliced_matrices(const Parameter& parameter, int slice, int num_slices, bool joins_qkv);

}  // namespace megalith

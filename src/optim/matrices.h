// A parameter's canonical matrices, rows as outputs, however fused, transposed or sliced; one per expert.
//
//   local tensor of q|k|v on rank 1 of 2     whole matrices
//   rows  0…3   q  rows 4…7 of 8             q (8, h)
//   rows  4…5   k  rows 2…3 of 4             k (4, h)        separate, or stacked as one (16, h)
//   rows  6…7   v  rows 2…3 of 4             v (4, h)
//
// Ranks hold equal slices of a matrix's rows or columns, in group order, by Placement.
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
  // Adjacent rows of one rank, described for slice 0.
  struct Block {
    int64_t row = 0;       // in the whole matrix
    int64_t num_rows = 0;  // of one slice
  };
  enum class Cut { kNone, kRows, kColumns };

  std::string name;               // canonical
  FlatRange range;                // in the flattened local tensor
  int64_t rows = 0, columns = 0;  // of the whole
  int64_t local_columns = 0;      // of a slice
  std::vector<Block> blocks;      // in local row order
  Cut cut = Cut::kNone;           // kNone: every rank has the whole
  int num_slices = 1;

  int64_t local_rows() const;
  // Copies a slice, (local_rows, local_columns), into the whole, and back.
  void put_slice(const at::Tensor& slice, int index, const at::Tensor& whole) const;
  at::Tensor take_slice(const at::Tensor& whole, int index) const;  // contiguous
};

// True for matrices multiplied with activations: linear layers, experts, routers; not embeddings or heads.
bool has_matrices(const Parameter& parameter);

// The ranks that share slices: tp, or etp for experts with their own axes.
Group& slice_group(const Parameter& parameter, const Groups& groups);

// In local row order. joins_qkv: queries, keys and values are one matrix. InternalError for other placements.
std::vector<SlicedMatrix> sliced_matrices(const Parameter& parameter, int slice, int num_slices, bool joins_qkv);

}  // namespace megalith

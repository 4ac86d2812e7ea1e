// State that is smaller than its parameter: a value for each row, column, block or whole matrix of its canonical
// tensors. Every rank with a share of a parameter keeps the values of all its canonical tensors:
//
//   local tensor of gate|up on rank 1 of 2      state of its rows, on both ranks
//   rows 0…3   gate  rows 4…7 of 8              0…7    gate  rows 0…7
//   rows 4…7   up    rows 4…7 of 8              8…15   up    rows 0…7
//
// A matrix is a canonical tensor's last two dims (one per expert); a bias or norm is a vector, its last dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nn/parameter.h"
#include "optim/update_rule.h"

namespace megalith {

// Linear layers, experts, routers, embeddings and heads.
bool consists_of_matrices(const Parameter& parameter);

// Axis along which ranks share canonical tensors, besides data parallelism; unset: none.
std::optional<Axis> slice_axis(const Parameter& parameter);

// Elements of a matrix, or vector, in the piece's canonical tensor.
int64_t matrix_elements(const Parameter& parameter, const Piece& piece);

class StateLayout {
 public:
  // shape  not kElements; rows and columns only for parameters of matrices
  StateLayout(const Parameter& parameter, StateShape shape);

  // The state's own, under the parameter's canonical names.
  const Placement& placement() const { return placement_; }
  // A piece's values in `state`, of placement().local_shape and without blocks: a view that broadcasts with the piece
  // in canonical orientation.
  at::Tensor of_piece(const at::Tensor& state, const Piece& piece) const;
  // For each element of a piece, its value's place in the flattened state: int64 of the piece's extents.
  at::Tensor places_of(const Piece& piece, at::Device device) const;
  // Adds this rank's share of means over rows, columns or matrices. values: of the piece, in canonical orientation.
  void add_means(const at::Tensor& means, const Piece& piece, const at::Tensor& values) const;

 private:
  size_t num_own_dims_;         // of a canonical tensor: 2 of a matrix, 1 of a vector
  std::optional<size_t> kept_;  // the own dim that the state has, counted from the first
  Placement placement_;
  std::map<std::string, size_t> piece_of_;  // by canonical name
};

}  // namespace megalith

// PackedWeight: the values of a frozen weight in four bits, NF4 (ops/nf4), as QLoRA holds them:
//
//   a code of four bits   an element
//   a code of eight bits  the scale of a block: 64 neighbouring columns of a row, of which a row's last may have fewer
//   two fp32 numbers      a group of 256 scales: by what the scale's code is multiplied, and what is added, which is
//                         the mean scale of the matrix
//
// about 4.13 bits an element. A matrix is a piece of the parameter's Placement: a canonical linear, or an expert's. Its
// blocks follow one another row by row, and every 256 of them are a group, of the whole matrix and not of what a rank
// has: each layout packs the same values. So the columns of a rank must begin where a block does.
// Source: Dettmers et al. 2023, arXiv:2305.14314; the order of blocks and groups is bitsandbytes'.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace megalith {

class PackedWeight {
 public:
  // The placement's pieces are matrices. UserError where a rank's columns do not begin with a block.
  PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options);

  // values (rows, columns) of the parameter's dtype; read only. Collective over the packing's ranks.
  void pack(const at::Tensor& values);
  // (rows, columns), of the parameter's dtype: a new tensor.
  at::Tensor unpacked() const;
  int64_t num_bytes() const;

 private:
  // One of those whose rows lie here.
  struct Matrix {
    int64_t first_row, rows;                // of this rank
    int64_t first_local_group, num_groups;  // those that its blocks here belong to
    int64_t first_group;                    // the first of them among those of the whole matrix
  };

  std::string name_;
  WeightPacking packing_;
  at::ScalarType dtype_;
  int64_t columns_;
  std::vector<Matrix> matrices_;
  at::Tensor codes_, scales_, first_blocks_, groups_, levels_;  // ops::Nf4Matrix
};

}  // namespace megalith

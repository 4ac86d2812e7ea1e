// PackedWeight: a frozen weight in four bits, NF4 (ops/nf4), as in QLoRA:
//
//   a code of four bits   per element
//   a code of eight bits  per block: 64 neighbouring columns of a row, whose last block may be shorter
//   two fp32 numbers      per group of 256 scales: their codes' factor and offset (the matrix's mean scale)
//
// about 4.13 bits per element. Blocks are ordered by row, and groups count over the whole matrix (a canonical linear,
// or an expert's), so every layout packs the same values; a rank's columns must begin at a block.
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
  // The placement's pieces are matrices. UserError if a rank's columns do not begin at a block.
  PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options);

  // values (rows, columns) of the parameter's dtype; read only. Collective over the packing's ranks.
  void pack(const at::Tensor& values);
  at::Tensor unpacked() const;
  int64_t num_bytes() const;

 private:
  struct Matrix {
    int64_t first_row, rows;
    int64_t first_local_group, num_groups;  // those of its blocks here
    int64_t first_group;                    // in the whole matrix
  };

  std::string name_;
  WeightPacking packing_;
  at::ScalarType dtype_;
  int64_t columns_;
  std::vector<Matrix> matrices_;
  at::Tensor codes_, scales_, first_blocks_, groups_, levels_;
};

}  // namespace megalith

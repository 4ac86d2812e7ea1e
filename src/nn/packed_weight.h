// A frozen weight in NF4 (ops/nf4), as in QLoRA:
//
//   four bits         per element
//   eight bits        per block: 64 neighbouring columns of a row; the last may be shorter
//   two fp32 numbers  per group of 256 scales: their codes' factor and offset (the matrix's mean scale)
//
// about 4.13 bits per element. Groups count blocks over the whole matrix (a canonical linear, or an expert's), by row:
// every layout packs the same values. Sources: arXiv:2305.14314 (QLoRA); bitsandbytes (order of blocks and groups).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace megalith {

class PackedWeight {
 public:
  // Pieces are matrices. UserError if a rank's columns do not begin at a block.
  PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options);

  // values (rows, columns) in the parameter's dtype. Collective over the packing's ranks.
  void pack(const at::Tensor& values);
  at::Tensor unpacked() const;
  int64_t num_bytes() const;

 private:
  struct Matrix {
    int64_t first_row, rows;
    int64_t first_local_group, num_groups;  // of its blocks here
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

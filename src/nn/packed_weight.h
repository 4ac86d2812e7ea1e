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
#include <functional>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace megalith {

// How ranks that share out the bytes of a packed weight reach them (parallel/fsdp_unit.h).
struct PackedShare {
  std::function<void(const at::Tensor& bytes)> keep;                  // takes this rank's share
  std::function<void(const std::function<void()>& read)> while_here;  // collective: the bytes are whole meanwhile
};

class PackedWeight {
 public:
  // Pieces are matrices. UserError if a rank's columns do not begin at a block.
  PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options);

  // values (rows, columns) in the parameter's dtype. Collective over the packing's ranks.
  void pack(const at::Tensor& values);
  at::Tensor unpacked() const;
  int64_t num_bytes() const;

  // What is packed, without the tables that follow from shapes: a multiple of 16.
  const at::Tensor& bytes() const { return bytes_; }
  // Uses this memory for it, of the same size on any device. Its storage may be emptied and refilled: meanwhile pack()
  // and unpacked() go by `share`.
  void place_in(const at::Tensor& memory, PackedShare share);

 private:
  struct Matrix {
    int64_t first_row, rows;
    int64_t first_local_group, num_groups;  // of its blocks here
    int64_t first_group;                    // in the whole matrix
  };

  struct Views {
    at::Tensor groups, scales, codes;
  };
  Views views(const at::Tensor& bytes) const;
  void make_tables(at::Device device);
  bool is_elsewhere() const { return bytes_.storage().nbytes() == 0; }

  std::string name_;
  WeightPacking packing_;
  at::ScalarType dtype_;
  int64_t rows_, columns_, num_groups_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<int32_t> first_block_of_row_;
  at::Tensor bytes_, first_blocks_, levels_;
  PackedShare share_;
};

}  // namespace megalith

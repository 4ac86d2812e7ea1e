// Whole tensors of another trainer, in the boxes that its ranks wrote, and how boxes of them become canonical ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_store.h"
#include "foreign/torch_archive.h"
#include "nn/placement.h"

namespace megalith {

struct ForeignTensor {
  struct Shard {
    Box box;
    FileTensor stored;  // of the box's extents
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Shard> shards;
};

// A run of a flattened tensor of this shape, from element `begin` on, as boxes of it. run: contiguous.
std::vector<ForeignTensor::Shard> shards_of_run(const std::vector<int64_t>& shape, int64_t begin,
                                                const FileTensor& run);

// A box of a foreign tensor that is a box of a local one, of as many or fewer dims: a layer of a stack, an expert, the
// queries of a group.
struct Patch {
  Box foreign;
  Box local;
  std::vector<size_t> dims;  // the foreign dim of each local one; extents of the others are 1

  // The same tensor, in as many dims.
  static Patch whole(const std::vector<int64_t>& shape);
};

// Adds to `store` what the shards hold of the canonical tensors that `placement` says the local tensor is made of.
void add_patches(TensorStore& store, const ForeignTensor& tensor, const Placement& placement,
                 std::span<const Patch> patches);

}  // namespace megalith

// Whole tensors of another trainer, in the boxes that its ranks wrote, and how boxes of them become canonical ones.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

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

// A box of a foreign tensor that is a box of a local one, of as many or fewer dims: a layer of a stack, an expert, the
// queries of a group.
struct Patch {
  Box foreign;
  Box local;
  std::vector<size_t> dims;  // the foreign dim of each local one; extents of the others are 1

  // The same tensor, in as many dims.
  static Patch whole(const std::vector<int64_t>& shape);
};

// Canonical tensors in the boxes that are found, by name.
struct CanonicalTensor {
  struct Part {
    Box box;
    FileTensor stored;  // of the box's extents
  };
  std::vector<int64_t> shape;
  std::vector<Part> parts;

  int64_t num_found() const;  // elements
  // UserError if the shape or dtype differs from earlier parts', or boxes overlap.
  void add(const std::string& name, const std::vector<int64_t>& whole, Part part);
};
using CanonicalStore = std::map<std::string, CanonicalTensor, std::less<>>;

// Adds to `store` what the shards hold of the canonical tensors that `placement` says the local tensor is made of.
void add_patches(CanonicalStore& store, const ForeignTensor& tensor, const Placement& placement,
                 std::span<const Patch> patches);

}  // namespace megalith

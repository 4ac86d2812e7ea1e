// Whole tensors of another trainer, in the boxes that its ranks wrote, and how boxes of them become canonical ones.
#pragma once

#include <functional>
#include <string>
#include <utility>
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

  static ForeignTensor whole(std::string name, const FileTensor& stored) {
    return {.name = std::move(name), .shape = stored.shape, .shards = {{Box::whole(stored.shape), stored}}};
  }
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

// A foreign tensor in terms of local ones: what is read from it, and written to it.
struct ForeignLayout {
  struct Place {
    const Placement* placement;
    std::vector<Patch> patches;
  };
  std::vector<int64_t> shape;
  std::vector<int64_t> view;  // the dims of the patches, if they split the shape's
  std::vector<Place> places;  // none: no parameter of the model

  // Dims before a layer's or expert's own.
  size_t num_leading_dims() const;
};

// A box of a canonical tensor in a foreign one.
struct ForeignPiece {
  Piece piece;
  Box in_foreign;
  std::vector<size_t> dims;  // the foreign dim of each canonical one
};
void for_each_piece(const Placement& placement, const Patch& patch,
                    const std::function<void(const ForeignPiece&)>& visit);

class CanonicalModel;
// A tensor in which transformers 5 has a layer's experts (checkpoint/fused_experts.h). No places: it is none.
ForeignLayout fused_experts_layout(const CanonicalModel& model, std::string_view name);

// Adds to `store` what the shards hold of the layout's canonical tensors.
void add_patches(TensorStore& store, const ForeignTensor& tensor, const ForeignLayout& layout);

}  // namespace megalith

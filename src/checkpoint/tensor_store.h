// Canonical tensors in files, whole or in boxes, read by any box that is asked for.
//
// A Hugging Face folder holds each tensor whole; a native checkpoint holds the boxes that its ranks wrote. A reader
// need not know which: it names the box that it wants, and gets it from the boxes that are there.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/finite_weights.h"
#include "checkpoint/pieces.h"
#include "tensor_files/safetensors.h"

namespace megalith {

class TensorStore {
 public:
  struct Part {
    Box box;  // of the canonical tensor
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsTensor* tensor = nullptr;  // of the box's extents
  };
  struct Entry {
    std::vector<int64_t> shape;
    SafetensorsDtype dtype = SafetensorsDtype::kF32;
    std::vector<Part> parts;
    // For a matrix that is stored with a scale for each block of elements: the tensor with the scales, and the blocks'
    // rows and columns. Empty for most.
    std::string scales = {};
    std::vector<int64_t> block = {};
    // For a tensor that is stored as blocks of MXFP4: the tensor with them. Then there are no parts.
    std::string packed = {};
  };

  // model.safetensors, or all files of model.safetensors.index.json. UserError when neither is there, a shard is
  // missing, or index and files disagree.
  static TensorStore open_folder(const std::filesystem::path& folder);
  static TensorStore open_file(const std::filesystem::path& path);

  // UserError when another part of the tensor had a different shape or dtype, or covers the same elements.
  void add(const std::string& name, const std::vector<int64_t>& shape, Part part);

  // Names that begin so lose it. UserError, with both names, where that one is taken.
  void drop_prefix(std::string_view prefix);

  // Says what F8_E4M3 matrices mean: element times the scale of its block, which lies in `NAME_scale_inv`, a tensor
  // (ceil(rows / block[0]), ceil(columns / block[1])) of floats. Reading gives the products from now on. UserError,
  // with file and tensor, where an F8_E4M3 tensor is no matrix or its scales are missing or do not fit. Source:
  // DeepSeek-V3's published files, inference/kernel.py (weight_dequant).
  void set_block_scales(const std::vector<int64_t>& block);

  // Adds, for each NAME_blocks (experts, columns, g, 16) of bytes, the tensor NAME (experts, 32 g, columns) that it is
  // with NAME_scales (experts, columns, g): matrices of MXFP4 (checkpoint/mxfp4.h), which files have the other way
  // round. UserError, with file and tensor, where shapes or types do not fit. Source: openai/gpt-oss-20b's files.
  void unpack_mxfp4();

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  // The piece's own name or the first of its aliases that is here; "" when none is.
  std::string_view resolve(const Piece& piece) const;

  // Copies a box of a tensor into `out`, which has the box's extents, any strides, any device and any dtype that the
  // stored one converts to; scaled elements are computed in float32 and rounded once. UserError when the stored parts
  // do not cover the box.
  void read(std::string_view name, const Box& box, const at::Tensor& out) const;

 private:
  at::Tensor scales_of(const Entry& entry, const Box& box) const;
  void read_mxfp4(const Entry& entry, const Box& box, const at::Tensor& out) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

// UserError, with file, tensor and types, unless an entry holds floating-point numbers. Parameters and moments are
// such: whole numbers or truth values in their place were meant for something else, or their type was damaged.
void require_floats(std::string_view name, const TensorStore::Entry& entry);

// How the tensors that are wanted and those that are there differ.
struct StoreFit {
  std::vector<std::string> missing;    // canonical names
  std::vector<std::string> misshaped;  // "model.norm.weight is [8], expected [16]"
  std::set<std::string> used;          // names in the store, aliases that also are there and scales included
};
// UserError when an entry of whole numbers is wanted as floating-point ones.
StoreFit compare_with_store(const TensorStore& store, std::span<const PieceView> views);

// Reads every view; its names were found to fit. All weights and optimizer states that are loaded pass here. UserError
// of require_finite().
void read_pieces(const TensorStore& store, std::span<const PieceView> views,
                 NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// Placement's local tensor, or the range of it; padding becomes zero.
void read_pieces(const TensorStore& store, const Placement& placement, const at::Tensor& local,
                 const std::optional<FlatRange>& range = std::nullopt);

}  // namespace megalith

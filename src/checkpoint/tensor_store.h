// Canonical tensors in files, stored whole (Hugging Face) or in boxes (native checkpoints), and read by any box.
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
    // For a matrix with a scale per block: the scales' tensor and the block's rows and columns. Usually empty.
    std::string scales = {};
    std::vector<int64_t> block = {};
    // For MXFP4: the tensor of blocks; there are no parts.
    std::string packed = {};
  };

  // model.safetensors, or all files of model.safetensors.index.json. UserError when neither exists, a shard is missing,
  // or index and files disagree.
  static TensorStore open_folder(const std::filesystem::path& folder);
  static TensorStore open_file(const std::filesystem::path& path);

  // UserError if an earlier part has another shape or dtype, or overlaps.
  void add(const std::string& name, const std::vector<int64_t>& shape, Part part);

  // Removes the prefix from names. UserError, with both names, if the result exists.
  void drop_prefix(std::string_view prefix);

  // Reads F8_E4M3 matrices as element times its block's scale, from `NAME_scale_inv`, floats (ceil(rows / block[0]),
  // ceil(columns / block[1])). UserError, with file and tensor, if an F8_E4M3 tensor is not a matrix or its scales are
  // missing or do not fit. Source: DeepSeek-V3's published files, inference/kernel.py (weight_dequant).
  void set_block_scales(const std::vector<int64_t>& block);

  // Adds, for each NAME_blocks (experts, columns, g, 16) of bytes and NAME_scales (experts, columns, g), the tensor
  // NAME (experts, 32 g, columns): MXFP4 matrices (checkpoint/mxfp4.h), stored transposed. UserError, with file and
  // tensor, if shapes or types do not fit. Source: openai/gpt-oss-20b's files.
  void unpack_mxfp4();

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  // The piece's name or its first alias that exists; "" if none.
  std::string_view resolve(const Piece& piece) const;

  // Copies a box of a tensor into `out`, of the box's extents, any strides and device, and any dtype that the stored
  // one converts to; scaled elements are computed in float32 and rounded once. UserError if the stored parts do not
  // cover the box.
  void read(std::string_view name, const Box& box, const at::Tensor& out) const;

 private:
  at::Tensor scales_of(const Entry& entry, const Box& box) const;
  void read_mxfp4(const Entry& entry, const Box& box, const at::Tensor& out) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

// UserError, with file, tensor and types, unless the entry is floating-point: integers or booleans mean a mistake or
// damage.
void require_floats(std::string_view name, const TensorStore::Entry& entry);

// Differences between requested and present tensors.
struct StoreFit {
  std::vector<std::string> missing;    // canonical names
  std::vector<std::string> misshaped;  // "model.norm.weight is [8], expected [16]"
  std::set<std::string> used;          // in the store, present aliases and scales included
};
// UserError if an integer entry is requested as floating-point.
StoreFit compare_with_store(const TensorStore& store, std::span<const PieceView> views);

// Reads every view; the names are known to fit. All loaded weights and optimizer states pass here. UserError from
// require_finite().
void read_pieces(const TensorStore& store, std::span<const PieceView> views,
                 NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// A placement's local tensor, or a range of it; padding becomes zero.
void read_pieces(const TensorStore& store, const Placement& placement, const at::Tensor& local,
                 const std::optional<FlatRange>& range = std::nullopt);

}  // namespace megalith

// Canonical tensors in files, whole (Hugging Face) or in boxes (our checkpoints), read by any box.
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
    Box box;            // in the canonical tensor
    FileTensor stored;  // of the box's extents

    const std::filesystem::path& path() const { return stored.file->path(); }
  };
  struct Entry {
    std::vector<int64_t> shape;
    SafetensorsDtype dtype = SafetensorsDtype::kF32;
    std::vector<Part> parts;

    int64_t num_found() const;  // elements in parts

    // Block-scaled matrices: the scales' tensor, and a block's rows and columns.
    std::string scales = {};
    std::vector<int64_t> block = {};
    // MXFP4: the tensor of blocks, without parts.
    std::string packed = {};
  };

  // model.safetensors, or all files of model.safetensors.index.json. UserError: neither, a missing shard, or
  // disagreement.
  static TensorStore open_folder(const std::filesystem::path& folder);
  static TensorStore open_file(const std::filesystem::path& path);

  // UserError if earlier parts differ in shape or dtype, or overlap. The same bytes again change nothing.
  void add(const std::string& name, const std::vector<int64_t>& shape, Part part);

  // UserError, with both names, if the result exists.
  void drop_prefix(std::string_view prefix);

  // Reads F8_E4M3 matrices times `NAME_scale_inv`, floats (ceil(rows / block[0]), ceil(columns / block[1])). UserError,
  // with file and tensor, for other ranks of tensor, missing or unfit scales. Source: DeepSeek-V3's published files,
  // inference/kernel.py (weight_dequant).
  void set_block_scales(const std::vector<int64_t>& block);

  // For NAME_blocks (experts, columns, g, 16) and NAME_scales (experts, columns, g), bytes, adds NAME (experts, 32 g,
  // columns): transposed MXFP4 matrices (mxfp4.h). UserError, with file and tensor, if shapes or types do not fit.
  // Source: openai/gpt-oss-20b's files.
  void unpack_mxfp4();

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  // The piece's name, or its first alias that exists; "" if none.
  std::string_view resolve(const Piece& piece) const;

  // Copies a box into `out`: the box's extents, any strides and device, any dtype the stored one converts to; scaling
  // is in float32, rounded once. UserError if parts do not cover the box.
  void read(std::string_view name, const Box& box, const at::Tensor& out) const;

 private:
  at::Tensor scales_of(const Entry& entry, const Box& box) const;
  void read_mxfp4(const Entry& entry, const Box& box, const at::Tensor& out) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

// UserError, with file, tensor and types, for integers or booleans: a mistake or damage.
void require_floats(std::string_view name, const TensorStore::Entry& entry);

struct StoreFit {
  std::vector<std::string> missing;    // canonical
  std::vector<std::string> misshaped;  // "model.norm.weight is [8], expected [16]"
  std::set<std::string> used;          // in the store, with aliases and scales
};
// UserError if an integer entry should be floating-point.
StoreFit compare_with_store(const TensorStore& store, std::span<const PieceView> views);

// All loaded weights and optimizer states pass here; names must fit. UserError from require_finite().
void read_pieces(const TensorStore& store, std::span<const PieceView> views,
                 NonfiniteWeights nonfinite = NonfiniteWeights::kRefused);

// A local tensor, or a range of it; zeroes padding.
void read_pieces(const TensorStore& store, const Placement& placement, const at::Tensor& local,
                 const std::optional<FlatRange>& range = std::nullopt);

}  // namespace megalith

// The safetensors format: a file's contents, read through a memory mapping.
//
//   u64 little-endian N | N bytes of JSON | data
//   JSON: name -> {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, and "__metadata__": text -> text
//
// Files are untrusted: sizes are computed with overflow checks, tensors must cover the data without hole or overlap,
// and names must be unique. UserErrors name the file, the tensor and the bytes. Source: huggingface/safetensors,
// README.md and safetensors/src/tensor.rs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace megalith {

// In the format's order of alignment, which decides the order in a file.
enum class SafetensorsDtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

std::string_view name_of(SafetensorsDtype dtype);  // "BF16"
std::optional<SafetensorsDtype> parse_safetensors_dtype(std::string_view name);
int64_t bits_of(SafetensorsDtype dtype);
// Nothing for sub-byte types, which our tensors cannot hold.
std::optional<at::ScalarType> scalar_type_of(SafetensorsDtype dtype);
SafetensorsDtype safetensors_dtype_of(at::ScalarType dtype);  // UserError for types the format lacks

// Nothing if the product overflows or is not a whole number of bytes.
std::optional<int64_t> safetensors_bytes(SafetensorsDtype dtype, std::span<const int64_t> shape);

struct SafetensorsTensor {
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of its first byte in the file
  int64_t num_bytes = 0;
};

// A tensor's place in a file, which may be strided.
struct FileTensor {
  std::shared_ptr<const MappedFile> file;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape, strides;  // in elements
  int64_t offset = 0, num_bytes = 0;    // from the first element to the end of the last, in the file

  std::span<const std::byte> bytes() const;
  // A read-only CPU tensor that shares the mapping and keeps it alive (a copy if the file does not align it). UserError
  // for a dtype that our tensors cannot hold.
  at::Tensor view() const;
};

// Strides of a contiguous tensor.
std::vector<int64_t> row_major(const std::vector<int64_t>& shape);

// A file opened for reading. Opening reads only the header; data pages are mapped on demand.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsTensor* find(std::string_view name) const;

  // `tensor` is one of tensors().
  FileTensor place(const SafetensorsTensor& tensor) const;
  std::span<const std::byte> bytes(const SafetensorsTensor& tensor) const { return place(tensor).bytes(); }
  at::Tensor view(const SafetensorsTensor& tensor) const { return place(tensor).view(); }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace megalith

// The GGUF format: a header of typed key-values, the tensors' list, and their data at multiples of 32 bytes.
//
//   "GGUF" | u32 version 3 | u64 tensors | u64 key-values | key-values | tensor list | padding | data
//
// Little-endian. Source: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gguf/quantization.h"

namespace megalith {

// As it is stored: uint32, int32, float32, bool, text, or an array.
using GgufValue = std::variant<uint32_t, int32_t, float, bool, std::string, std::vector<int32_t>, std::vector<float>,
                               std::vector<bool>, std::vector<std::string>>;

// In order of first setting, as llama.cpp's converter writes them.
class GgufKeys {
 public:
  // A later value takes the earlier one's place. Omits empty texts and arrays.
  void set(std::string_view key, GgufValue value);
  // To the end, where llama.cpp's quantizer puts the keys that it changes.
  void move_to_end(std::string_view key);

  const std::vector<std::pair<std::string, GgufValue>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, GgufValue>> entries_;
};

struct GgufTensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  GgufType type = GgufType::kF32;

  int64_t num_elements() const;
  int64_t num_bytes() const;
};

// Everything before the data, padded. Tensors' data follow in order, each padded by gguf_padding().
std::string gguf_header(const GgufKeys& keys, const std::vector<GgufTensorInfo>& tensors);

// Zeros that follow `num_bytes` bytes.
int64_t gguf_padding(int64_t num_bytes);

}  // namespace megalith

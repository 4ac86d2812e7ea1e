// The types of tensors in GGUF files, and their rounding as llama.cpp's own without an importance matrix: the same
// candidates, weights and ties.
//
//   type        values  bytes  a block holds
//   Q8_0            32     34  scale, 8-bit numbers
//   Q5_0, Q5_1      32  22, 24 scale (and least value), 5-bit numbers
//   Q4_K, Q5_K     256 144, 176 scales and least values of 8 runs in 6 bits, under one scale each; 4- or 5-bit numbers
//   Q6_K           256    210  scales of 16 runs in 8 bits under one scale; 6-bit numbers
//
// Scales are fp16. Source: ggml-org/llama.cpp, ggml/src/ggml-common.h (layouts), ggml-quants.c (roundings).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace megalith {

// With ggml's numbers.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kBf16 = 30,
};

int64_t block_size(GgufType type);   // values
int64_t block_bytes(GgufType type);  // of a block

// `values` are whole blocks; `out` has their bytes. On the calling thread.
void quantize(GgufType type, std::span<const float> values, std::span<std::byte> out);

}  // namespace megalith

// The type of each tensor, as llama.cpp chooses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "gguf/gguf_file.h"
#include "models/model_config.h"

namespace megalith {

// general.file_type.
enum class GgufFileType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 7, kQ4KM = 15, kQ5KM = 17, kQ6K = 18, kBf16 = 32 };

// "fp32", "q4_k_m".
std::optional<GgufFileType> parse_gguf_file_type(std::string_view word);

// True of types that llama.cpp's quantizer writes, and not its converter.
bool is_k_quant(GgufFileType type);

// Sets the tensors' types. Vectors, norms, routers and positions stay F32; rows that are no whole number of blocks get
// the next larger type that fits. K-quants also sort the tensors by layer and name, as the quantizer does.
// Source: ggml-org/llama.cpp, conversion/base.py (prepare_tensors), src/llama-quant.cpp.
void choose_gguf_types(GgufFileType type, std::string_view architecture, const ModelConfig& config,
                       std::vector<GgufTensorInfo>& tensors);

}  // namespace megalith

// Writes a stored model as one GGUF file, which llama.cpp and what is built on it (Ollama, LM Studio) run.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/convert.h"
#include "core/log.h"
#include "gguf/type_mix.h"
#include "gguf/vocabulary.h"

namespace megalith {

struct GgufExport {
  GgufFileType type = GgufFileType::kBf16;
  std::optional<GgufTokenizerFiles> tokenizer;  // unset: the file has none, and is used by ids
  // Of a Hugging Face model: its own config.json, generation_config.json and the order of its tensors count.
  std::optional<std::filesystem::path> source;
  std::string name;  // of the model, if nothing in `source` names it
  std::optional<int64_t> pad_token_id;
  Logger* log = nullptr;
  ProgressSettings progress = {};
};

inline constexpr uint32_t kGgufQuantizationVersion = 2;

// Pairs i and i + d / 2 of a head's rows become neighbours, as llama.cpp's own rotation takes them.
at::Tensor with_adjacent_pairs(const at::Tensor& rows, int64_t heads);

// Appears atomically. Memory: a tensor, and some blocks of rows. UserError, before anything is written, for families
// and features that llama.cpp lacks, a tokenizer with no form, and too little space.
//   tensors  the model's weights, on the CPU
//   model    with the tokenizer's special ids
void save_gguf(const std::filesystem::path& file, std::span<const CheckpointTensor> tensors, const ModelFamily& family,
               const ModelConfig& model, const GgufExport& settings);

}  // namespace megalith

// Writes low-rank adapters as a GGUF file, which llama.cpp puts beside a model's (--lora FILE): it adds
// alpha / r B A to the weight that each pair is named after.
//
//   general.architecture of the model, general.type adapter, adapter.type lora, adapter.lora.alpha
//   NAME.lora_a (r, in), NAME.lora_b (out, r)   of a layer's experts (e, r, in), (e, out, r)
//
// Source: ggml-org/llama.cpp, convert_lora_to_gguf.py, src/llama-adapter.cpp.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/merge_adapter.h"
#include "gguf/type_mix.h"

namespace megalith {

// Appears atomically. UserError, before anything is written, for adapters that llama.cpp has no form for: DoRA, modules
// that are saved whole, weights that its file holds in another shape.
//   config  the base's
void save_gguf_adapter(const std::filesystem::path& file, const ReadAdapter& adapter, const ModelFamily& family,
                       const ModelConfig& config, GgufFileType type, const std::string& name);

}  // namespace megalith

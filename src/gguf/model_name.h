// A GGUF file's description of its model: the parts of its name, its size, how it is sampled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "gguf/gguf_file.h"

namespace megalith {

// "Qwen/Qwen2.5-7B-Instruct-v2" has Qwen2.5-7B-Instruct-v2, Qwen, Qwen2.5, Instruct, v2, 7B. Empty: not in the name.
struct ModelNameParts {
  std::string name, organization, basename, finetune, version, size;
};
// num_parameters  tells sizes from lengths of context ("128k")
ModelNameParts parse_model_name(const std::string& name, int64_t num_parameters);

// "14.8B"; "8x7B" with experts.
std::string gguf_size_label(const std::vector<GgufTensorInfo>& tensors);

// general.type to general.size_label: sampling by generation_config.json of `source`, if any; names by its
// config.json's _name_or_path, then by the folder's name.
void set_gguf_model_name(const std::string& folder_name, const std::optional<std::filesystem::path>& source,
                         const std::vector<GgufTensorInfo>& tensors, GgufKeys& keys);

}  // namespace megalith

// The index cache: arrays that take long to build are kept on disk under a hash of what they depend on. Files are named
// as Megatron's ({hash}-GPTDataset-train-document_index.npy); the hash is our own, since Megatron's holds Python paths.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/index_array.h"

namespace megalith {

struct IndexCacheKey {
  std::string class_name;                // "GPTDataset", "BlendedDataset"
  std::string split;                     // empty where megatron-core's names have none
  std::string description;               // everything the arrays depend on, as JSON
  std::vector<std::string> array_names;  // "document_index", …
  // The JSON by which megatron-core would describe them, without tokenizers; empty when its arrays would not do.
  std::string megatron_description;
  // Whether arrays from the cache have the shapes they must have.
  std::function<bool(const std::vector<IndexArray>&)> fits;
  // Builds the arrays as files of these paths, where they need not be in memory together; without it build() is asked.
  std::function<void(const std::vector<std::filesystem::path>&)> build_files;
};

// The arrays from the cache, or from build(), which then fills the cache. When several processes ask at the same time,
// one builds and the others wait (for a lock on a file beside the arrays, freed by the system when its holder dies).
// Files appear whole, so ranks and jobs may share a folder. A cache of megatron-core's in the folder is used when its
// description agrees in every field but the tokenizer's. Without a folder, or when it cannot be written (a note says
// so), the arrays stay in memory.
std::vector<IndexArray> load_or_build_arrays(const std::optional<std::filesystem::path>& folder,
                                             const IndexCacheKey& key,
                                             const std::function<std::vector<IndexArray>()>& build, Logger& log);

}  // namespace megalith

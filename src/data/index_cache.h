// The index cache: slow-to-build arrays on disk, keyed by a hash of what they depend on. File names are Megatron's
// ({hash}-GPTDataset-train-document_index.npy); the hash is ours, as Megatron's covers Python paths.
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
  std::string class_name;   // "GPTDataset", "BlendedDataset"
  std::string split;        // empty where megatron-core's names have none
  std::string description;  // everything the arrays depend on, as JSON
  std::vector<std::string> array_names;
  // megatron-core's description, without tokenizers; empty if its arrays cannot serve.
  std::string megatron_description;
  // True if cached arrays have the right shapes.
  std::function<bool(const std::vector<IndexArray>&)> fits;
  // Builds arrays as files of these paths, without holding all in memory; if unset, build() is called.
  std::function<void(const std::vector<std::filesystem::path>&)> build_files;
};

// Loads arrays from the cache, or builds and stores them. One of several concurrent processes builds while the others
// wait (on a file lock, which the system frees if its holder dies). Files appear whole, so ranks and jobs may share a
// folder. Uses megatron-core's cache in the folder if its description agrees except for the tokenizer's. Without a
// writable folder (a note tells) arrays stay in memory.
std::vector<IndexArray> load_or_build_arrays(const std::optional<std::filesystem::path>& folder,
                                             const IndexCacheKey& key,
                                             const std::function<std::vector<IndexArray>()>& build, Logger& log);

}  // namespace megalith

// The index cache; see index_cache.h.
#include "data/index_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/on_threads.h"
#include "core/system_call.h"
#include "data/builder_lock.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

struct CacheFiles {
  fs::path description;
  std::vector<fs::path> arrays;
};

CacheFiles files_of(const fs::path& folder, const std::string& stem, const IndexCacheKey& key) {
  CacheFiles files{folder / (stem + "description.txt"), {}};
  for (const std::string& name : key.array_names) files.arrays.push_back(folder / (stem + name + ".npy"));
  return files;
}

// "GPTDataset-train-"
std::string label_of(const IndexCacheKey& key) {
  return key.class_name + (key.split.empty() ? "-" : "-" + key.split + "-");
}

// Nothing if an array is missing or has a wrong shape; UserError if damaged.
std::optional<std::vector<IndexArray>> load_arrays(const CacheFiles& files, const IndexCacheKey& key) {
  std::vector<IndexArray> arrays;
  for (const fs::path& path : files.arrays) {
    if (!fs::exists(path)) return std::nullopt;
    arrays.push_back(IndexArray::load_npy(path));
  }
  if (key.fits && !key.fits(arrays)) {
    throw UserError(fmt::format("the arrays beside {} do not fit together", files.description.string()));
  }
  return arrays;
}

// Concurrent: mostly waits for the disk.
void save_arrays(const std::vector<IndexArray>& arrays, const CacheFiles& files) {
  for_each_on_threads(arrays.size(), arrays.size(), [&](size_t i) { arrays[i].save_npy(files.arrays[i]); });
}

// Nothing if files are missing or damaged.
std::optional<std::vector<IndexArray>> try_load(const CacheFiles& files, const IndexCacheKey& key, Logger& log) {
  try {
    if (!fs::exists(files.description) || read_file(files.description) != key.description) return std::nullopt;
    return load_arrays(files, key);
  } catch (const UserError& error) {
    log.warn("index cache: {}; building it anew", error.message());
    return std::nullopt;
  }
}

// A description without irrelevant parts: the tokenizer, the spelling of paths.
Json comparable(Json value) {
  if (value.is_array()) {
    for (Json& item : value) item = comparable(std::move(item));
  }
  if (value.is_object()) {
    value.erase("tokenizer");
    for (auto& [name, item] : value.items()) {
      const std::string* text = try_text(item);
      if (name == "dataset_path" && text != nullptr) {
        std::error_code ignored;
        const fs::path path = fs::weakly_canonical(*text, ignored);
        if (!ignored) item = path.string();
      } else {
        item = comparable(std::move(item));
      }
    }
  }
  return value;
}

// Arrays of a megatron-core cache in this folder, if any. Its hash covers Python's names of the tokenizer, so match by
// description.
std::optional<std::vector<IndexArray>> find_megatrons(const fs::path& folder, const IndexCacheKey& key, Logger& log) {
  if (key.megatron_description.empty()) return std::nullopt;
  const std::string ending = fmt::format("-{}description.txt", label_of(key));
  const Json wanted = comparable(parse_json(key.megatron_description, "description"));
  std::vector<fs::path> candidates;
  try {
    for (const fs::directory_entry& entry : list_folder(folder)) {
      if (entry.path().filename().string().ends_with(ending)) candidates.push_back(entry.path());
    }
  } catch (const UserError&) {
    return std::nullopt;  // none, or unreadable
  }
  std::sort(candidates.begin(), candidates.end());
  for (const fs::path& path : candidates) {
    try {
      if (comparable(parse_json(read_file(path), path.string())) != wanted) continue;
      const std::string name = path.filename().string();
      const std::string stem = name.substr(0, name.size() - std::string_view("description.txt").size());
      if (auto arrays = load_arrays(files_of(folder, stem, key), key)) {
        log.debug("index cache: the arrays that megatron-core left beside {}", path.string());
        return arrays;
      }
    } catch (const UserError& problem) {
      log.note("index cache: {}; not used", problem.message());
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<IndexArray> load_or_build_arrays(const std::optional<fs::path>& folder, const IndexCacheKey& key,
                                             const std::function<std::vector<IndexArray>()>& build, Logger& log) {
  if (!folder) return build();
  const std::string stem = fmt::format("{}-{}", checksum128(key.description).hex(), label_of(key));
  const CacheFiles files = files_of(*folder, stem, key);
  if (auto arrays = try_load(files, key, log)) return std::move(*arrays);
  if (auto arrays = find_megatrons(*folder, key, log)) return std::move(*arrays);
  try {
    make_directories(*folder);
  } catch (const UserError& error) {
    log.note("{}; the sample index stays in memory (data_cache_path chooses another folder)", error.message());
    return build();
  }
  const BuilderLock lock(*folder / ("." + stem + "lock"));
  // Another process may have built it while this one waited.
  if (auto arrays = try_load(files, key, log)) return std::move(*arrays);
  std::vector<IndexArray> arrays;
  if (!key.build_files) arrays = build();
  MEGALITH_CHECK(key.build_files || arrays.size() == files.arrays.size(), "{} arrays for {} names", arrays.size(),
                 files.arrays.size());
  try {
    if (key.build_files) {
      key.build_files(files.arrays);
    } else {
      save_arrays(arrays, files);
    }
    write_file_atomic(files.description, key.description);  // last: marks the arrays complete
  } catch (const UserError& error) {
    log.note("{}; the sample index stays in memory (data_cache_path chooses another folder)", error.message());
    return key.build_files ? build() : std::move(arrays);
  }
  // Mapped from now on: frees the built arrays, and a node's ranks share pages.
  if (auto saved = try_load(files, key, log)) return std::move(*saved);
  return key.build_files ? build() : std::move(arrays);
}

}  // namespace megalith

// The index cache; see index_cache.h.
#include "data/index_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Holds the folder for one builder at a time. Where the file system knows no locks nobody waits: the work is then done
// more than once, with the same result.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0) return;
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

struct CacheFiles {
  fs::path description;
  std::vector<fs::path> arrays;
};

// Nothing when the cache does not hold all files, or holds damaged ones.
std::optional<std::vector<IndexArray>> try_load(const CacheFiles& files, const std::string& description, Logger& log) {
  try {
    if (!fs::exists(files.description) || read_file(files.description) != description) return std::nullopt;
    std::vector<IndexArray> arrays;
    for (const fs::path& path : files.arrays) {
      if (!fs::exists(path)) return std::nullopt;
      arrays.push_back(IndexArray::load_npy(path));
    }
    return arrays;
  } catch (const UserError& error) {
    log.warn("index cache: {}; building it anew", error.message());
    return std::nullopt;
  }
}

}  // namespace

std::vector<IndexArray> load_or_build_arrays(const std::optional<fs::path>& folder, const IndexCacheKey& key,
                                             const std::function<std::vector<IndexArray>()>& build, Logger& log) {
  if (!folder) return build();
  const std::string stem = fmt::format("{}-{}-{}-", checksum128(key.description).hex(), key.class_name, key.split);
  CacheFiles files{*folder / (stem + "description.txt"), {}};
  for (const std::string& name : key.array_names) files.arrays.push_back(*folder / (stem + name + ".npy"));

  if (auto arrays = try_load(files, key.description, log)) return std::move(*arrays);
  try {
    make_directories(*folder);
  } catch (const UserError& error) {
    log.note("{}; the sample index stays in memory (data_cache_path chooses another folder)", error.message());
    return build();
  }
  const FolderLock lock(*folder);
  // Another process may have built it while this one waited.
  if (auto arrays = try_load(files, key.description, log)) return std::move(*arrays);
  std::vector<IndexArray> arrays = build();
  MEGALITH_CHECK(arrays.size() == files.arrays.size(), "{} arrays for {} names", arrays.size(), files.arrays.size());
  try {
    for (size_t i = 0; i < arrays.size(); ++i) arrays[i].save_npy(files.arrays[i]);
    write_file_atomic(files.description, key.description);  // last: its presence says that the arrays are complete
  } catch (const UserError& error) {
    log.note("{}; the sample index stays in memory (data_cache_path chooses another folder)", error.message());
  }
  return arrays;
}

}  // namespace megalith

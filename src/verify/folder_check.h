// A folder's writability, speed and file system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/finding.h"
#include "device/machine.h"

namespace megalith {

struct FolderFacts {
  std::string purpose;  // "save", "TMPDIR"
  std::filesystem::path path;
  std::filesystem::path nearest;  // existing, tested parent, or itself
  std::string problem;            // if writing fails
  std::optional<Mount> mount;
  std::optional<SpaceFacts> space;
  double write_bytes_per_s = 0;  // with fsync; 0: not measured
};

// Writes, flushes and removes a file. Creates no folder: the nearest parent is tested. root: of /proc.
FolderFacts probe_folder(const std::string& purpose, const std::filesystem::path& path, int64_t num_bytes,
                         const std::filesystem::path& root = "/");

// Topic "disk".
Findings check_folder(const FolderFacts& facts);

}  // namespace megalith

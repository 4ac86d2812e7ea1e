// Checks a folder's writability, speed and file system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/finding.h"
#include "device/machine.h"

namespace megalith {

struct FolderFacts {
  std::string purpose;            // "save", "TMPDIR"
  std::filesystem::path path;     // as given
  std::filesystem::path nearest;  // it or the nearest existing parent, which was tested
  std::string problem;            // why writing fails; empty if it works
  std::optional<Mount> mount;
  std::optional<SpaceFacts> space;
  double write_bytes_per_s = 0;  // including fsync; 0: not measured
};

// Writes a file of this many bytes, flushes and removes it. A missing folder is not created: its nearest parent is
// tested. root: of /proc; tests change it.
FolderFacts probe_folder(const std::string& purpose, const std::filesystem::path& path, int64_t num_bytes,
                         const std::filesystem::path& root = "/");

// Findings of the topic "disk".
Findings check_folder(const FolderFacts& facts);

}  // namespace megalith

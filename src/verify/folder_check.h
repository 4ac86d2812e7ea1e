// Whether a folder can be written to, how fast, and on what kind of file system it lies.
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
  std::filesystem::path path;     // as it was given
  std::filesystem::path nearest;  // it, or the nearest parent that exists; what was tried
  std::string problem;            // why nothing can be written; empty when it can
  std::optional<Mount> mount;
  std::optional<SpaceFacts> space;
  double write_bytes_per_s = 0;  // written and flushed to disk (fsync); 0: not measured
};

// Writes a file of this many bytes, flushes it, and removes it again. A folder that is not there yet is not made: its
// nearest parent is tried. root: where /proc is, "/" except in tests.
FolderFacts probe_folder(const std::string& purpose, const std::filesystem::path& path, int64_t num_bytes,
                         const std::filesystem::path& root = "/");

// Findings of the topic "disk".
Findings check_folder(const FolderFacts& facts);

}  // namespace megalith

// Checkpoints below s3://bucket/prefix, named as in a folder. checkpoint.json is an iteration's last object: without it
// there is no checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/log.h"
#include "storage/object_mirror.h"

namespace megalith {

// Mirrors an s3:// address: tensors are fetched as they are read, all else at once. Returns the folder; other paths are
// themselves. Iterations of interrupted saves are left out.
std::filesystem::path pull_checkpoints(const std::string& path, Logger& log);

// UserError unless objects can be made and removed there.
void check_stored_writable(const std::string& url, Logger& log);

// Before a save: removes uploads and iterations that killed saves left.
void remove_interrupted_saves(const ObjectStore& store, Logger& log);

// checkpoint.json first: what is left after a kill is no checkpoint.
void remove_stored_checkpoint(const ObjectStore& store, int64_t iteration);

}  // namespace megalith

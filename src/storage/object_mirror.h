// Folders that mirror objects, so that what reads folders reads object storage.
//
//   $TMPDIR/megalith-objects-UID/bucket/prefix/       the mirror of s3://bucket/prefix
//     .url                                            that address
//     file, .file.object                              an object, and its address, etag and size
//     .file.blocks                                    a byte for each MiB of a large file: 1 once it was fetched
//
// Large files are holes until fill_mirrored() fetches the ranges asked for: a rank reads what it needs, the ranks of a
// machine fetch a block about once, and the next run finds it. What changed in the storage is fetched anew.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "storage/object_store.h"

namespace megalith {

std::filesystem::path mirror_of(const S3Url& url);
// The mirror of an s3:// address; other paths are themselves.
std::string local_path(const std::string& path);
// The store that this folder mirrors; null for other folders. Credentials come from the environment.
std::optional<ObjectStore> mirrored_store(const std::filesystem::path& folder, Logger& log);
ObjectStore open_object_store(const S3Url& url, Logger& log);

struct PullRules {
  bool is_whole = false;        // without holes
  bool removes_others = false;  // files of objects that are not among these
};
// Brings the mirror up to date and returns it. Processes of a machine take turns.
std::filesystem::path pull_objects(const ObjectStore& store, const std::vector<StoredObject>& objects,
                                   const PullRules& rules = {});

// Before bytes of a mirrored file are read; does nothing for others. MachineError if the object changed since this
// process read from it.
void fill_mirrored(const std::filesystem::path& file, int64_t offset, int64_t length);

}  // namespace megalith

// Data sets and texts in object storage (s3://bucket/prefix), brought here as files.
#pragma once

#include <string>
#include <vector>

#include "core/log.h"

namespace megalith {

// UserError unless there are prefix.idx and prefix.bin.
void check_object_data(const std::string& prefix, Logger& log);
// Fetches .idx; ranges of .bin are fetched when they are read. Returns the prefix of the local files.
std::string pull_object_data(const std::string& prefix, Logger& log);

// Fetches one object, or the texts among the objects below a prefix, whole. Returns the local file or folder; paths
// that are no s3:// address are themselves.
std::string fetch_object_texts(const std::string& path, Logger& log);

}  // namespace megalith

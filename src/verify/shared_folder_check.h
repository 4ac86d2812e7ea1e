// Checks that machines share a folder: one process leaves a file, others look for it.
#pragma once

#include <span>
#include <string>

#include "core/finding.h"

namespace megalith {

// Empty, uniquely named, removed by the destructor.
class SharedFolderProbe {
 public:
  // In the nearest existing parent.
  explicit SharedFolderProbe(const std::string& folder);
  ~SharedFolderProbe();
  SharedFolderProbe(const SharedFolderProbe&) = delete;
  SharedFolderProbe& operator=(const SharedFolderProbe&) = delete;

  // Relative if the folder was, for each process's own current folder; empty on failure.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct FolderSight {
  int rank = 0;
  std::string host;
  bool sees_probe = false;
};

// Topic "disk". A warning unless all see the first one's file: every machine then builds what it lacks.
//   option  "data_cache_path"
Finding check_shared_folder(const std::string& option, const std::string& folder, std::span<const FolderSight> ranks);

}  // namespace megalith

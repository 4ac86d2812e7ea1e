// Checks that all machines share a folder: one process leaves a file in it, the others look for it.
#pragma once

#include <span>
#include <string>

#include "core/finding.h"

namespace megalith {

// An empty, uniquely named file, removed with this object.
class SharedFolderProbe {
 public:
  // In the folder or its nearest existing parent.
  explicit SharedFolderProbe(const std::string& folder);
  ~SharedFolderProbe();
  SharedFolderProbe(const SharedFolderProbe&) = delete;
  SharedFolderProbe& operator=(const SharedFolderProbe&) = delete;

  // Relative if the folder was, so that each process looks from its own current folder; empty if no file could be
  // created.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct FolderSight {
  int rank = 0;
  std::string host;
  bool sees_probe = false;
};

// Topic "disk": which ranks see the first one's file. Otherwise a warning: a run works, and every machine builds what
// it lacks.
//   option  "data_cache_path"
Finding check_shared_folder(const std::string& option, const std::string& folder, std::span<const FolderSight> ranks);

}  // namespace megalith

// Whether a folder is the same one on all machines: one process leaves a file in it, and the others look for it.
#pragma once

#include <span>
#include <string>

#include "core/finding.h"

namespace megalith {

// An empty file with a name that nobody has used, gone when this ends.
class SharedFolderProbe {
 public:
  // In the folder, or in the nearest parent that is there.
  explicit SharedFolderProbe(const std::string& folder);
  ~SharedFolderProbe();
  SharedFolderProbe(const SharedFolderProbe&) = delete;
  SharedFolderProbe& operator=(const SharedFolderProbe&) = delete;

  // As the folder was written, so that a relative one is looked for in each process's own current folder; empty when
  // no file could be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct FolderSight {
  int rank = 0;
  std::string host;
  bool sees_probe = false;
};

// A finding of the topic "disk": which ranks see the file that the first one left. Not to see it is a warning: a run
// works, and every machine builds what it finds missing.
//   option  "data_cache_path"
Finding check_shared_folder(const std::string& option, const std::string& folder, std::span<const FolderSight> ranks);

}  // namespace megalith

#include "verify/shared_folder_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "core/system_call.h"

namespace megalith {

SharedFolderProbe::SharedFolderProbe(const std::string& folder) {
  std::error_code error;
  std::filesystem::path place = folder;
  while (!place.empty() && !std::filesystem::is_directory(place, error) && place != place.parent_path()) {
    place = place.parent_path();
  }
  if (place.empty()) place = ".";
  std::string name = (place / ".megalith_doctor_shared_XXXXXX").string();
  const std::string pattern = name;
  const int file = retry_interrupted([&] {
    name = pattern;
    return ::mkostemp(name.data(), 0);
  });
  if (file < 0) return;
  close_descriptor(file);
  path_ = name;
}

SharedFolderProbe::~SharedFolderProbe() {
  if (!path_.empty()) try_remove_tree(path_);
}

Finding check_shared_folder(const std::string& option, const std::string& folder, std::span<const FolderSight> ranks) {
  Finding finding{"disk", option + " of all nodes", FindingLevel::kOk, "", ""};
  std::vector<int> blind;
  std::set<std::string> hosts;
  for (const FolderSight& one : ranks) {
    if (one.sees_probe) continue;
    blind.push_back(one.rank);
    hosts.insert(one.host);
  }
  if (blind.empty()) {
    finding.found = fmt::format("{}: all {} ranks see what the first one writes", folder, ranks.size());
    return finding;
  }
  finding.level = FindingLevel::kWarning;
  finding.found = fmt::format("{}: what rank {} writes is not seen by rank {} ({})", folder, ranks.front().rank,
                              ranges_text(blind), fmt::join(hosts, ", "));
  finding.remedy =
      fmt::format("--{} with a folder that all nodes mount (NFS, Lustre); else each of them makes the indices", option);
  return finding;
}

}  // namespace megalith

// Formats: proc(5), capabilities(7), group(5); kernel documentation of Yama and power_dpm_force_performance_level.
#include "device/machine_access.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "core/folder.h"
#include "core/strings.h"
#include "device/fact_files.h"

namespace megalith {
namespace {

using namespace fact_files;

struct ProcessIdentity {
  int64_t user = -1;
  std::set<int64_t> groups;
  uint64_t capabilities = 0;
};

ProcessIdentity read_identity(const std::filesystem::path& root) {
  const auto fields = fields_of(file_text(root / "proc/self/status"), ":");
  const auto words = [&](const char* name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::vector<std::string>() : split_words(found->second);
  };
  ProcessIdentity identity;
  // Real, effective, saved, file system's: open() uses the last.
  if (const auto users = words("Uid"); users.size() == 4) identity.user = whole_number(users[3]).value_or(-1);
  if (const auto groups = words("Gid"); groups.size() == 4)
    identity.groups.insert(whole_number(groups[3]).value_or(-1));
  for (const std::string& group : words("Groups")) identity.groups.insert(whole_number(group).value_or(-1));
  if (const auto mask = words("CapEff"); mask.size() == 1) {
    std::from_chars(mask[0].data(), mask[0].data() + mask[0].size(), identity.capabilities, 16);
  }
  return identity;
}

// From "render:x:109:me"; the number if unnamed.
std::string group_name(const std::filesystem::path& root, int64_t group) {
  for (const std::string& line : lines_of(file_text(root / "etc/group"))) {
    const size_t first = line.find(':'), second = line.find(':', first + 1), third = line.find(':', second + 1);
    if (third == std::string::npos) continue;
    if (whole_number(std::string_view(line).substr(second + 1, third - second - 1)) == group)
      return line.substr(0, first);
  }
  return std::to_string(group);
}

std::optional<DeviceNode> device_node(const std::filesystem::path& root, const std::string& name,
                                      const ProcessIdentity& identity) {
  struct stat found {};
  if (::stat((root / name).c_str(), &found) != 0) return std::nullopt;
  const auto may = [&](mode_t bits) { return (found.st_mode & bits) == bits; };
  const bool may_open = identity.user == 0 ||
                        (identity.user == static_cast<int64_t>(found.st_uid) && may(S_IRUSR | S_IWUSR)) ||
                        (identity.groups.contains(static_cast<int64_t>(found.st_gid)) && may(S_IRGRP | S_IWGRP)) ||
                        may(S_IROTH | S_IWOTH);
  return DeviceNode{"/" + name, group_name(root, static_cast<int64_t>(found.st_gid)), may_open};
}

std::vector<DeviceNode> device_nodes(const std::filesystem::path& root, const std::string& folder,
                                     std::string_view prefix, const ProcessIdentity& identity) {
  std::vector<DeviceNode> nodes;
  for (const std::string& name : names_in(root / folder)) {
    if (!is_numbered(name, prefix)) continue;
    if (auto node = device_node(root, folder + "/" + name, identity)) nodes.push_back(std::move(*node));
  }
  return nodes;
}

// From "#define HIPBLASLT_VERSION_MAJOR 0".
std::string defined_version(const std::string& header, std::string_view part) {
  for (const std::string& line : lines_of(header)) {
    const std::vector<std::string> words = split_words(line);
    if (words.size() >= 3 && words[0] == "#define" &&
        lower_case(words[1]) == std::string("hipblaslt_version_") + std::string(part)) {
      return words[2];
    }
  }
  return "";
}

}  // namespace

AccessFacts read_access(const std::filesystem::path& root) {
  const ProcessIdentity identity = read_identity(root);
  AccessFacts facts;
  facts.has_amd_driver = is_there(root / "sys/module/amdgpu");
  facts.kfd = device_node(root, "dev/kfd", identity);
  facts.render = device_nodes(root, "dev/dri", "renderD", identity);
  facts.verbs = device_nodes(root, "dev/infiniband", "uverbs", identity);
  facts.ptrace_scope = whole_number(file_text(root / "proc/sys/kernel/yama/ptrace_scope"));
  constexpr int kSysPtrace = 19;
  facts.has_trace_capability = (identity.capabilities >> kSysPtrace & 1) != 0;
  return facts;
}

std::vector<std::string> read_gpu_clock_levels(const std::filesystem::path& root) {
  std::set<std::string> levels;
  const std::filesystem::path cards = root / "sys/class/drm";
  for (const std::string& card : names_in(cards)) {
    // AMD only: a console's display adapter has clocks, too.
    if (!is_numbered(card, "card") || trimmed(cards / card / "device/vendor") != "0x1002") continue;
    const std::string level = trimmed(cards / card / "device/power_dpm_force_performance_level");
    if (!level.empty()) levels.insert(level);
  }
  return {levels.begin(), levels.end()};
}

std::vector<std::string> read_firewalls(const std::filesystem::path& root) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(file_text(root / "etc/ufw/ufw.conf"))) {
    if (lower_case(trim(line)) == "enabled=yes") found.emplace_back("ufw");
  }
  if (is_there(root / "sys/fs/cgroup/system.slice/firewalld.service")) found.emplace_back("firewalld");
  return found;
}

RocmInstallation read_rocm(const std::filesystem::path& root) {
  RocmInstallation found;
  const std::string text = trimmed(root / "opt/rocm/.info/version");  // "6.3.4-76"
  found.rocm = text.substr(0, text.find('-'));
  const std::string header = file_text(root / "opt/rocm/include/hipblaslt/hipblaslt-version.h");
  const std::string major = defined_version(header, "major"), minor = defined_version(header, "minor"),
                    patch = defined_version(header, "patch");
  if (!major.empty() && !minor.empty() && !patch.empty()) found.hipblaslt = major + "." + minor + "." + patch;
  return found;
}

}  // namespace megalith

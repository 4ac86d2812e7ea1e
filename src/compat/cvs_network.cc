#include "compat/cvs_network.h"

#include <fmt/format.h>

#include <algorithm>

#include "compat/cvs_patterns.h"
#include "config/option_value.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool counts_errors(const std::string& counter) {
  static const auto parts = cvs_patterns::phrases_of("counter");
  return cvs_patterns::first_phrase(parts, lower_case(counter)) != nullptr;
}

// Text of a sysfs file; nothing if unreadable, as for counters that a driver lacks.
std::optional<std::string> read_word(const fs::path& file) {
  const std::optional<std::string> text = try_read_facts(file);
  return text ? std::optional(std::string(trim(*text))) : std::nullopt;
}

// "=mlx5_0:1,mlx5_1" is mlx5_0 and mlx5_1; nothing for a list of exclusions, "^docker".
std::vector<std::string> named_devices(const std::string& list) {
  std::vector<std::string> names;
  if (list.starts_with('^')) return names;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string name(trim(list.substr(begin, end - begin)));
    begin = end + 1;
    if (name.starts_with('=')) name.erase(0, 1);
    if (const size_t colon = name.find(':'); colon != std::string::npos) name.erase(colon);
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

CvsFinding look_for(const std::string& key, const std::string& name, const fs::path& folder) {
  const std::vector<std::string> there = names_in(folder);
  CvsFinding finding{"containers", fmt::format("{} {}", key, name), FindingLevel::kOk, "is there", "", ""};
  if (std::find(there.begin(), there.end(), name) == there.end()) {
    finding.level = FindingLevel::kError;
    finding.found = "is not there";
    finding.remedy = there.empty() ? "this machine has none: load the driver of its network cards"
                                   : fmt::format("this machine has {}", join(there, ", "));
  }
  return finding;
}

}  // namespace

CvsCounters read_error_counters(const fs::path& machine) {
  CvsCounters counters;
  const fs::path devices = machine / "sys/class/infiniband";
  for (const std::string& device : names_in(devices)) {
    for (const std::string& port : names_in(devices / device / "ports")) {
      for (const char* kind : {"counters", "hw_counters"}) {
        const fs::path folder = devices / device / "ports" / port / kind;
        for (const std::string& counter : names_in(folder)) {
          const auto value = counts_errors(counter) ? read_word(folder / counter) : std::nullopt;
          const auto number = value ? parse_integer(*value) : std::nullopt;
          if (number) counters[fmt::format("{} port {} {}", device, port, counter)] = *number;
        }
      }
    }
  }
  return counters;
}

CvsFindings compare_error_counters(const CvsCounters& before, const CvsCounters& after) {
  CvsFindings findings;
  if (before.empty() && after.empty()) {
    return {
        {"communication", "network errors", FindingLevel::kNote, "no RDMA port of this machine counts errors", "", ""}};
  }
  for (const auto& [name, value] : after) {
    const auto found = before.find(name);
    const int64_t first = found == before.end() ? 0 : found->second;
    if (value <= first) continue;
    findings.push_back({"communication", fmt::format("network errors, {}", name), FindingLevel::kError,
                        fmt::format("{} more during the run ({} before it)", value - first, first), "none",
                        "look at the cable, the switch's port and the card"});
  }
  if (findings.empty()) {
    findings.push_back({"communication", "network errors", FindingLevel::kOk,
                        fmt::format("none of {} counters grew during the run", after.size()), "", ""});
  }
  return findings;
}

CvsFindings check_network_names(const CvsConfig& config, const fs::path& machine) {
  CvsFindings findings;
  const auto value = [&](const char* key) {
    const std::string* found = config.config.find(key);
    return found == nullptr || is_unresolved(*found) ? std::string() : *found;
  };
  for (const std::string& name : named_devices(value("nccl_ib_hca_list"))) {
    findings.push_back(look_for("nccl_ib_hca_list", name, machine / "sys/class/infiniband"));
  }
  for (const char* key : {"nccl_socket_ifname", "gloo_socket_ifname"}) {
    for (const std::string& name : named_devices(value(key))) {
      const fs::path folder = machine / "sys/class/net";
      CvsFinding finding = look_for(key, name, folder);
      const auto state = read_word(folder / name / "operstate");
      if (finding.level == FindingLevel::kOk && state && *state != "up" && *state != "unknown") {
        finding.level = FindingLevel::kError;
        finding.found = "is " + *state;
        finding.remedy = fmt::format("ip link set {} up", name);
      }
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace megalith

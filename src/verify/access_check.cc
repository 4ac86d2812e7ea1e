#include "verify/access_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/strings.h"

namespace megalith {
namespace {

Finding device_finding(std::string check, FindingLevel level, std::string found, std::string remedy = "") {
  return {"devices", std::move(check), level, std::move(found), std::move(remedy)};
}

std::string join_group(const std::string& group) {
  return fmt::format("sudo usermod -aG {0} $USER and log in again; in a container --group-add {0}", group);
}

// Names the first that may not be opened.
Finding nodes_finding(const std::string& check, const std::vector<DeviceNode>& nodes, FindingLevel level_if_refused) {
  const auto refused = std::find_if(nodes.begin(), nodes.end(), [](const DeviceNode& node) { return !node.may_open; });
  if (refused == nodes.end()) {
    return device_finding(check, FindingLevel::kOk,
                          nodes.size() == 1 ? nodes.front().path + " can be opened"
                                            : fmt::format("{} devices can be opened", nodes.size()));
  }
  return device_finding(
      check, level_if_refused,
      fmt::format("{} belongs to group {}, and this process is not in it", refused->path, refused->group),
      join_group(refused->group));
}

void add_amd_nodes(const AccessFacts& access, const MachineUse& use, Findings& all) {
  const FindingLevel wanted = use.uses_gpu ? FindingLevel::kError : FindingLevel::kWarning;
  const char* const pass = "in a container pass the devices: --device /dev/kfd --device /dev/dri --group-add video";
  if (access.kfd) {
    all.push_back(nodes_finding("/dev/kfd", {*access.kfd}, wanted));
  } else {
    all.push_back(device_finding("/dev/kfd", FindingLevel::kWarning,
                                 access.has_amd_driver ? "amdgpu is loaded, and the device is not here"
                                                       : "there is none: the driver amdgpu is not loaded",
                                 access.has_amd_driver ? pass : fmt::format("install the driver amdgpu; {}", pass)));
  }
  if (!access.render.empty()) {
    all.push_back(nodes_finding("/dev/dri", access.render, wanted));
  } else {
    all.push_back(device_finding("/dev/dri", FindingLevel::kWarning, "there is no renderD device", pass));
  }
}

}  // namespace

Findings check_device_access(const AccessFacts& access, const MachineUse& use, bool is_rocm, bool has_rdma) {
  Findings all;
  if (access.has_amd_driver || access.kfd || is_rocm) add_amd_nodes(access, use, all);
  if (!access.verbs.empty()) {
    all.push_back(nodes_finding("/dev/infiniband", access.verbs, FindingLevel::kWarning));
  } else if (has_rdma) {
    all.push_back(device_finding("/dev/infiniband", FindingLevel::kWarning,
                                 "the kernel lists RDMA ports, and their devices are not here: machines talk over TCP",
                                 "in a container pass them: --device /dev/infiniband"));
  }
  return all;
}

Findings check_gpu_clocks(const std::vector<std::string>& levels) {
  if (levels.empty()) return {};
  const std::string text = join(levels, ", ");
  const std::string steady = "rocm-smi --setperfdeterminism 1900 (MHz, as AMD does for MI300X)";
  if (levels.size() > 1) {
    return {device_finding("GPU clocks", FindingLevel::kWarning,
                           fmt::format("set differently ({}): the slowest GPU holds up all", text),
                           "the same for all: " + steady)};
  }
  if (text == "low") {
    return {device_finding("GPU clocks", FindingLevel::kWarning, "held at the lowest",
                           "rocm-smi --setperflevel auto, or " + steady)};
  }
  if (text == "auto") {
    return {device_finding("GPU clocks", FindingLevel::kNote, "auto: speed changes with load and heat",
                           "for steady speed: " + steady)};
  }
  return {device_finding("GPU clocks", FindingLevel::kOk, text)};
}

Findings check_tracing(const AccessFacts& access) {
  Finding finding{"limits", "ptrace", FindingLevel::kOk, "", ""};
  if (access.has_trace_capability) {
    finding.found = "allowed (CAP_SYS_PTRACE)";
  } else if (access.ptrace_scope.value_or(0) == 0) {
    finding.found = "allowed for processes of this user";
  } else {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format(
        "restricted (/proc/sys/kernel/yama/ptrace_scope is {}): debuggers do not attach to ranks, and MPI copies "
        "between them twice",
        *access.ptrace_scope);
    finding.remedy =
        "in a container --cap-add SYS_PTRACE --security-opt seccomp=unconfined; else "
        "sudo sysctl kernel.yama.ptrace_scope=0";
  }
  return {std::move(finding)};
}

Findings check_firewalls(const std::vector<std::string>& firewalls, const MachineUse& use) {
  Finding finding{"ports", "firewall", FindingLevel::kOk, "none is on here (ufw, firewalld)", ""};
  if (!firewalls.empty()) {
    const bool has_others = use.world_size > use.local_world_size;
    finding.level = has_others ? FindingLevel::kWarning : FindingLevel::kNote;
    finding.found = fmt::format("{} {} on: ranks of other machines connect to any port of this one",
                                join(firewalls, " and "), firewalls.size() == 1 ? "is" : "are");
    const bool is_ufw = firewalls.front() == "ufw";
    finding.remedy = is_ufw ? "let the cluster's network in (sudo ufw allow from ADDRESS/BITS), or sudo ufw disable"
                            : "let the cluster's interface in (sudo firewall-cmd --zone=trusted "
                              "--add-interface=NAME), or sudo systemctl stop firewalld";
  }
  return {std::move(finding)};
}

}  // namespace megalith

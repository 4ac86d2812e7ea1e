// This process's permissions and the machine's settings. Read below a root folder, as in machine.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct DeviceNode {
  std::string path;   // "/dev/kfd"
  std::string group;  // owner: "render", or its number if /etc/group has no name for it
  bool may_open = false;
};

struct AccessFacts {
  bool has_amd_driver = false;  // the kernel has loaded amdgpu, even if its devices are hidden
  std::optional<DeviceNode> kfd;
  std::vector<DeviceNode> render;  // /dev/dri/renderD*
  std::vector<DeviceNode> verbs;   // /dev/infiniband/uverbs*
  // Yama's level: from 0, a user's processes may trace each other, to 3, no tracing; nothing: no Yama.
  std::optional<int64_t> ptrace_scope;
  bool has_trace_capability = false;  // CAP_SYS_PTRACE
};
AccessFacts read_access(const std::filesystem::path& root);

// Distinct clock settings of all AMD cards: "auto", "perf_determinism", "high", "low", "manual", …; empty if unknown.
std::vector<std::string> read_gpu_clock_levels(const std::filesystem::path& root);

// Active ones: "ufw", "firewalld". A container cannot see the host's.
std::vector<std::string> read_firewalls(const std::filesystem::path& root);

struct RocmInstallation {
  std::string rocm;       // "6.3.4"
  std::string hipblaslt;  // "0.13.0"
};
RocmInstallation read_rocm(const std::filesystem::path& root);

}  // namespace megalith

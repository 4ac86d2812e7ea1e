// This process's permissions and the machine's settings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct DeviceNode {
  std::string path;   // "/dev/kfd"
  std::string group;  // "render"; its number if unnamed
  bool may_open = false;
};

struct AccessFacts {
  bool has_amd_driver = false;  // amdgpu is loaded
  std::optional<DeviceNode> kfd;
  std::vector<DeviceNode> render;  // /dev/dri/renderD*
  std::vector<DeviceNode> verbs;   // /dev/infiniband/uverbs*
  // Yama: 0, a user's processes may trace each other, to 3, no tracing; null without Yama.
  std::optional<int64_t> ptrace_scope;
  bool has_trace_capability = false;  // CAP_SYS_PTRACE
};
AccessFacts read_access(const std::filesystem::path& root);

// AMD cards' distinct levels: "auto", "perf_determinism", "high", "manual", …
std::vector<std::string> read_gpu_clock_levels(const std::filesystem::path& root);

// "ufw", "firewalld" if active. A container cannot see its host's.
std::vector<std::string> read_firewalls(const std::filesystem::path& root);

struct RocmInstallation {
  std::string rocm;       // "6.3.4"
  std::string hipblaslt;  // "0.13.0"
};
RocmInstallation read_rocm(const std::filesystem::path& root);

}  // namespace megalith

// What this process may do with the machine, and how the machine is set: device nodes and their groups, tracing, clocks
// of AMD's GPUs, firewalls, ROCm's version. Read as machine.h reads, from the files below a root folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct DeviceNode {
  std::string path;   // "/dev/kfd"
  std::string group;  // that owns it: "render", or its number where /etc/group has no name for it
  bool may_open = false;
};

struct AccessFacts {
  bool has_amd_driver = false;  // the kernel has loaded amdgpu, whether this process sees its devices or not
  std::optional<DeviceNode> kfd;
  std::vector<DeviceNode> render;  // /dev/dri/renderD*
  std::vector<DeviceNode> verbs;   // /dev/infiniband/uverbs*
  // Yama's level: 0 lets processes of a user trace one another, 3 nobody; nothing: the kernel has no Yama.
  std::optional<int64_t> ptrace_scope;
  bool has_trace_capability = false;  // CAP_SYS_PTRACE
};
AccessFacts read_access(const std::filesystem::path& root);

// How the driver of AMD's GPUs chooses clocks, the distinct answers of all cards: "auto", "perf_determinism", "high",
// "low", "manual", …; empty when not told.
std::vector<std::string> read_gpu_clock_levels(const std::filesystem::path& root);

// Those that are switched on: "ufw", "firewalld". In a container the host's are not seen.
std::vector<std::string> read_firewalls(const std::filesystem::path& root);

// What is installed in /opt/rocm; empty when it is not there.
struct RocmInstallation {
  std::string rocm;       // "6.3.4"
  std::string hipblaslt;  // "0.13.0"
};
RocmInstallation read_rocm(const std::filesystem::path& root);

}  // namespace megalith

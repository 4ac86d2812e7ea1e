// The operating system's facts about this machine. Read below a root folder ("/" except in tests). Missing or
// unreadable files leave fields empty; nothing throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct CpuFacts {
  std::string model;                   // "Intel(R) Xeon(R) Platinum 8488C"; empty if unknown (Arm)
  int num_processors = 0;              // hardware threads
  std::vector<std::string> governors;  // distinct clock governors
};
CpuFacts read_cpu(const std::filesystem::path& root);
// Processors that the process's control groups grant, the tightest of its ancestors: 2.5 in a container started with
// --cpus 2.5; nothing without a limit.
std::optional<double> read_cpu_quota(const std::filesystem::path& root);

struct MemoryFacts {
  std::optional<int64_t> total_bytes, available_bytes, swap_total_bytes, swap_free_bytes;
  // Limit and use of the process's control groups, the tightest of its ancestors; empty without a limit.
  std::optional<int64_t> limit_bytes, limit_used_bytes;
  std::optional<int64_t> limit_cache_bytes;  // of that, file pages, which the kernel can reclaim
  std::string transparent_huge_pages;        // "always", "madvise", "never"; empty if unknown
};
MemoryFacts read_memory(const std::filesystem::path& root);

struct GpuFacts {
  bool has_nvidia = false, has_amd = false;  // drivers' device nodes exist: /dev/nvidiactl, /dev/kfd
  std::string nvidia_driver, amd_driver;     // versions; empty if unknown
  struct Device {
    std::string name;          // "NVIDIA H200"; AMD's product name if known, else "AMD GPU"
    std::string architecture;  // "gfx942"; empty if unknown
    std::optional<int64_t> memory_bytes;
  };
  std::vector<Device> devices;
};
GpuFacts read_gpus(const std::filesystem::path& root);

struct SystemFacts {
  std::string host, kernel;  // "5.15.0-105-generic"
  std::optional<int64_t> numa_balancing;
  int num_numa_nodes = 0;  // 0: unknown
};
SystemFacts read_system(const std::filesystem::path& root);

// Soft limits of this process; nothing: unlimited.
struct LimitFacts {
  bool is_known = false;
  std::optional<int64_t> open_files, locked_bytes, processes;
  std::optional<int64_t> open_files_hard;
};
LimitFacts read_limits(const std::filesystem::path& root);

struct RdmaPort {
  std::string device;      // "mlx5_0"
  int port = 1;            // from 1
  std::string state;       // "ACTIVE", "DOWN", …
  std::string rate;        // "400 Gb/sec (4X NDR)"
  std::string link_layer;  // "InfiniBand" or "Ethernet"
  bool is_active() const { return state == "ACTIVE"; }
};
std::vector<RdmaPort> read_rdma_ports(const std::filesystem::path& root);

struct Mount {
  std::string point, type, source;  // "/home", "nfs4", "server:/home"
};
// The mount of an absolute path; nothing if the table cannot be read.
std::optional<Mount> mount_of(const std::filesystem::path& root, const std::filesystem::path& path);

// Space of a folder's file system; nothing if unknown. The path is used as it is, without a root.
struct SpaceFacts {
  int64_t total_bytes = 0, free_bytes = 0;    // free: for ordinary users
  int64_t total_inodes = 0, free_inodes = 0;  // 0 in all: the file system does not count them
};
std::optional<SpaceFacts> read_space(const std::filesystem::path& folder);

}  // namespace megalith

// The operating system's facts, below a root ("/" except in tests). Unreadable files leave fields empty; nothing
// throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct CpuFacts {
  std::string model;                   // empty on Arm
  int num_processors = 0;              // hardware threads
  std::vector<std::string> governors;  // distinct clock governors
};
CpuFacts read_cpu(const std::filesystem::path& root);
// The tightest control group's: 2.5 after `docker run --cpus 2.5`; null if unlimited.
std::optional<double> read_cpu_quota(const std::filesystem::path& root);

struct MemoryFacts {
  std::optional<int64_t> total_bytes, available_bytes, swap_total_bytes, swap_free_bytes;
  // The tightest control group's; null if unlimited.
  std::optional<int64_t> limit_bytes, limit_used_bytes;
  std::optional<int64_t> limit_cache_bytes;  // reclaimable file pages in it
  std::string transparent_huge_pages;        // "always", "madvise", "never"
};
MemoryFacts read_memory(const std::filesystem::path& root);

struct GpuFacts {
  bool has_nvidia = false, has_amd = false;  // /dev/nvidiactl, /dev/kfd exist
  std::string nvidia_driver, amd_driver;     // versions
  struct Device {
    std::string name;          // "NVIDIA H200"; "AMD GPU" if unknown
    std::string architecture;  // "gfx942"
    std::optional<int64_t> memory_bytes;
  };
  std::vector<Device> devices;
};
GpuFacts read_gpus(const std::filesystem::path& root);

struct SystemFacts {
  std::string host, kernel;  // "5.15.0-105-generic"
  std::optional<int64_t> numa_balancing;
  int num_numa_nodes = 0;  // 0 if unknown
};
SystemFacts read_system(const std::filesystem::path& root);

// Soft limits of this process; null if unlimited.
struct LimitFacts {
  bool is_known = false;
  std::optional<int64_t> open_files, locked_bytes, processes;
  std::optional<int64_t> open_files_hard;
};
LimitFacts read_limits(const std::filesystem::path& root);

struct RdmaPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  std::string state;       // "ACTIVE", "DOWN", …
  std::string rate;        // "400 Gb/sec (4X NDR)"
  std::string link_layer;  // "InfiniBand", "Ethernet"
  bool is_active() const { return state == "ACTIVE"; }
};
std::vector<RdmaPort> read_rdma_ports(const std::filesystem::path& root);

struct Mount {
  std::string point, type, source;  // "/home", "nfs4", "server:/home"
};
// `path` is absolute; null without a mount table.
std::optional<Mount> mount_of(const std::filesystem::path& root, const std::filesystem::path& path);

struct SpaceFacts {
  int64_t total_bytes = 0, free_bytes = 0;    // free for ordinary users
  int64_t total_inodes = 0, free_inodes = 0;  // total 0: not counted
};
std::optional<SpaceFacts> read_space(const std::filesystem::path& folder);

}  // namespace megalith

// What the operating system tells of this machine: processors, memory, GPUs and their drivers, NUMA, limits, RDMA
// ports, mounts. Read from the files below a root folder, which is "/" except in tests. A file that is missing or
// cannot be read leaves its field empty; nothing here throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct CpuFacts {
  std::string model;                   // "Intel(R) Xeon(R) Platinum 8488C"; empty when not told (Arm)
  int num_processors = 0;              // hardware threads
  std::vector<std::string> governors;  // of clock frequencies: the distinct ones
};
CpuFacts read_cpu(const std::filesystem::path& root);
// Processors' worth of time that the control groups of the process grant, the tightest of its ancestors; nothing
// without a limit. 2.5 in a container that was started with --cpus 2.5.
std::optional<double> read_cpu_quota(const std::filesystem::path& root);

struct MemoryFacts {
  std::optional<int64_t> total_bytes, available_bytes, swap_total_bytes, swap_free_bytes;
  // What the control groups of the process allow and use, the tightest of its ancestors; empty without a limit.
  std::optional<int64_t> limit_bytes, limit_used_bytes;
  std::optional<int64_t> limit_cache_bytes;  // of that, pages of files, which the kernel gives back when asked
  std::string transparent_huge_pages;        // "always", "madvise", "never"; empty when not told
};
MemoryFacts read_memory(const std::filesystem::path& root);

struct GpuFacts {
  bool has_nvidia = false, has_amd = false;  // device nodes that a driver has made: /dev/nvidiactl, /dev/kfd
  std::string nvidia_driver, amd_driver;     // versions; empty when not told
  struct Device {
    std::string name;          // "NVIDIA H200"; of AMD's the product's name when the driver tells it, else "AMD GPU"
    std::string architecture;  // "gfx942"; empty when not told
    std::optional<int64_t> memory_bytes;
  };
  std::vector<Device> devices;
};
GpuFacts read_gpus(const std::filesystem::path& root);

struct SystemFacts {
  std::string host, kernel;  // "5.15.0-105-generic"
  std::optional<int64_t> numa_balancing;
  int num_numa_nodes = 0;  // 0: not told
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
// The mount that an absolute path lies on; nothing when the table cannot be read.
std::optional<Mount> mount_of(const std::filesystem::path& root, const std::filesystem::path& path);

// Bytes of the file system that holds a folder; nothing when it cannot be asked. Whose root the path has is the
// caller's business.
struct SpaceFacts {
  int64_t total_bytes = 0, free_bytes = 0;    // free: for ordinary users
  int64_t total_inodes = 0, free_inodes = 0;  // 0 in all: the file system does not count them
};
std::optional<SpaceFacts> read_space(const std::filesystem::path& folder);

}  // namespace megalith

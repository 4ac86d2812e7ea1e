// Reading a machine from fake roots: good files, bad ones and none.
#include "device/machine.h"

#include <gtest/gtest.h>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

using test::TemporaryFolder;
constexpr int64_t kKiB = 1024;

TEST(Machine, ProcessorFromCpuinfo) {
  const TemporaryFolder root;
  root.write(
      "proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: Some "
      "CPU @ 2.0GHz\n");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  root.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
  root.write("sys/devices/system/cpu/cpuidle/cpufreq/scaling_governor", "not a processor\n");
  const CpuFacts cpu = read_cpu(root.path());
  EXPECT_EQ(cpu.model, "Some CPU @ 2.0GHz");
  EXPECT_EQ(cpu.num_processors, 2);
  EXPECT_EQ(cpu.governors, (std::vector<std::string>{"performance", "powersave"}));
}

TEST(Machine, MemoryInBytes) {
  const TemporaryFolder root;
  root.write("proc/meminfo",
             "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:   900 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const MemoryFacts memory = read_memory(root.path());
  EXPECT_EQ(memory.total_bytes, 1000 * kKiB);
  EXPECT_EQ(memory.available_bytes, 900 * kKiB);
  EXPECT_EQ(memory.swap_total_bytes, 50 * kKiB);
  EXPECT_EQ(memory.swap_free_bytes, 20 * kKiB);
  EXPECT_EQ(memory.transparent_huge_pages, "madvise");
  EXPECT_FALSE(memory.limit_bytes.has_value());
}

TEST(Machine, TheTightestControlGroupOfVersion2Counts) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/system.slice/job.scope\n");
  root.write("sys/fs/cgroup/system.slice/job.scope/memory.max", "max\n");
  root.write("sys/fs/cgroup/system.slice/memory.max", "5000000\n");
  root.write("sys/fs/cgroup/system.slice/memory.current", "123\n");
  root.write("sys/fs/cgroup/memory.max", "9000000\n");
  const MemoryFacts memory = read_memory(root.path());
  EXPECT_EQ(memory.limit_bytes, 5000000);
  EXPECT_EQ(memory.limit_used_bytes, 123);
}

TEST(Machine, ControlGroupOfVersion1) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  // As in a container: the group's own path is missing, the files are at the top.
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "77\n");
  MemoryFacts memory = read_memory(root.path());
  EXPECT_EQ(memory.limit_bytes, 7000000);
  EXPECT_EQ(memory.limit_used_bytes, 77);
  root.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "6000000\n");
  EXPECT_EQ(read_memory(root.path()).limit_bytes, 6000000);
  root.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(read_memory(root.path()).limit_bytes.has_value());
}

TEST(Machine, TheTightestProcessorQuotaOfVersion2Counts) {
  const TemporaryFolder root;
  EXPECT_FALSE(read_cpu_quota(root.path()));
  root.write("proc/self/cgroup", "0::/system.slice/job.scope\n");
  root.write("sys/fs/cgroup/cpu.max", "800000 100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 8) << "as in a container, where the group lies at the top";
  root.write("sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n");
  root.write("sys/fs/cgroup/system.slice/job.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 2.5) << "of the slice that the job lies in";
}

TEST(Machine, ProcessorQuotaOfVersion1) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/x\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(read_cpu_quota(root.path()));
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 1.5);
}

TEST(Machine, NvidiaGpusAndDriver) {
  const TemporaryFolder root;
  root.write("dev/nvidiactl", "");
  root.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
             "GCC version:  gcc version 12.2.0\n");
  root.write("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\n");
  root.write("proc/driver/nvidia/gpus/0000:43:00.0/information", "IRQ:   \t\t 13\n");
  const GpuFacts gpus = read_gpus(root.path());
  EXPECT_TRUE(gpus.has_nvidia);
  EXPECT_FALSE(gpus.has_amd);
  EXPECT_EQ(gpus.nvidia_driver, "550.54.15");
  ASSERT_EQ(gpus.devices.size(), 2u);
  EXPECT_EQ(gpus.devices[0].name, "NVIDIA H200");
  EXPECT_EQ(gpus.devices[1].name, "NVIDIA GPU");
  root.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.28.03  Release Build\n");
  EXPECT_EQ(read_gpus(root.path()).nvidia_driver, "560.28.03");
}

TEST(Machine, AmdGpusAndDriver) {
  const TemporaryFolder root;
  root.write("dev/kfd", "");
  root.write("sys/module/amdgpu/version", "6.10.5\n");
  const std::string nodes = "sys/class/kfd/kfd/topology/nodes/";
  root.write(nodes + "0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n");
  root.write(nodes + "1/properties", "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n");
  root.write(nodes + "1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\n");
  root.write(nodes + "2/properties", "simd_count 416\ngfx_target_version 90010\n");
  GpuFacts gpus = read_gpus(root.path());
  EXPECT_TRUE(gpus.has_amd);
  EXPECT_EQ(gpus.amd_driver, "6.10.5");
  ASSERT_EQ(gpus.devices.size(), 2u);
  EXPECT_EQ(gpus.devices[0].architecture, "gfx942");
  EXPECT_EQ(gpus.devices[0].memory_bytes, 206141652992);
  EXPECT_EQ(gpus.devices[0].name, "AMD GPU");
  EXPECT_EQ(gpus.devices[1].architecture, "gfx90a");
  root.write("sys/class/drm/card0/device/product_name", "AMD Instinct MI300X\n");
  root.write("sys/class/drm/card1/device/product_name", "AMD Instinct MI210\n");
  gpus = read_gpus(root.path());
  EXPECT_EQ(gpus.devices[1].name, "AMD Instinct MI210");
}

TEST(Machine, KernelAndNuma) {
  const TemporaryFolder root;
  root.write("proc/sys/kernel/osrelease", "5.15.0-105-generic\n");
  root.write("proc/sys/kernel/hostname", "gpu007\n");
  root.write("proc/sys/kernel/numa_balancing", "1\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  root.write("sys/devices/system/node/node1/cpulist", "4-7\n");
  root.write("sys/devices/system/node/online", "0-1\n");
  const SystemFacts system = read_system(root.path());
  EXPECT_EQ(system.kernel, "5.15.0-105-generic");
  EXPECT_EQ(system.host, "gpu007");
  EXPECT_EQ(system.numa_balancing, 1);
  EXPECT_EQ(system.num_numa_nodes, 2);
}

TEST(Machine, LimitsWithAndWithoutNumbers) {
  const TemporaryFolder root;
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max processes             unlimited            unlimited            processes \n"
             "Max open files            1024                 1048576              files     \n"
             "Max locked memory         8388608              8388608              bytes     \n");
  const LimitFacts limits = read_limits(root.path());
  EXPECT_TRUE(limits.is_known);
  EXPECT_EQ(limits.open_files, 1024);
  EXPECT_EQ(limits.open_files_hard, 1048576);
  EXPECT_EQ(limits.locked_bytes, 8388608);
  EXPECT_FALSE(limits.processes.has_value());
}

TEST(Machine, RdmaPorts) {
  const TemporaryFolder root;
  root.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  root.write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  root.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
  root.write("sys/class/infiniband/mlx5_1/ports/2/state", "1: DOWN\n");
  const std::vector<RdmaPort> ports = read_rdma_ports(root.path());
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_TRUE(ports[0].is_active());
  EXPECT_EQ(ports[0].device, "mlx5_0");
  EXPECT_EQ(ports[0].link_layer, "InfiniBand");
  EXPECT_EQ(ports[1].state, "DOWN");
  EXPECT_EQ(ports[1].port, 2);
}

TEST(Machine, TheInnermostMountHoldsAPath) {
  const TemporaryFolder root;
  root.write("proc/self/mountinfo",
             "20 1 0:1 / / rw,relatime - overlay overlay rw,lowerdir=/l\n"
             "21 20 0:2 / /home rw shared:1 master:2 - nfs4 server:/export rw\n"
             "22 20 0:3 / /home/my\\040data rw - ext4 /dev/sda1 rw\n"
             "23 20 0:4 / /homestead rw - xfs /dev/sdb rw\n"
             "broken line\n");
  const auto type = [&](const char* path) { return mount_of(root.path(), path)->type; };
  EXPECT_EQ(type("/var"), "overlay");
  EXPECT_EQ(type("/home"), "nfs4");
  EXPECT_EQ(type("/home/me/x"), "nfs4");
  EXPECT_EQ(type("/home/my data/x"), "ext4");
  EXPECT_EQ(type("/homesteads"), "overlay");
  EXPECT_EQ(mount_of(root.path(), "/home/me")->source, "server:/export");
}

TEST(Machine, NothingIsKnownOfAnEmptyRoot) {
  const TemporaryFolder root;
  const std::filesystem::path& path = root.path();
  EXPECT_EQ(read_cpu(path).num_processors, 0);
  EXPECT_FALSE(read_memory(path).total_bytes.has_value());
  EXPECT_TRUE(read_gpus(path).devices.empty());
  EXPECT_FALSE(read_system(path).numa_balancing.has_value());
  EXPECT_FALSE(read_limits(path).is_known);
  EXPECT_TRUE(read_rdma_ports(path).empty());
  EXPECT_FALSE(mount_of(path, "/home").has_value());
  EXPECT_FALSE(read_space(path / "none").has_value());
}

TEST(Machine, GarbageIsNotBelieved) {
  const TemporaryFolder root;
  root.write("proc/meminfo", "MemTotal: many kB\nMemAvailable\n:::\n");
  root.write("proc/self/limits", "Max open files\nMax locked memory  x\n");
  root.write("proc/sys/kernel/numa_balancing", "maybe\n");
  root.write("proc/self/cgroup", "no colons\n");
  root.write("sys/fs/cgroup/memory.max", "-5\n");
  root.write("proc/self/mountinfo", "1 2 3 - \n- - - - - -\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "]always[");
  root.write("sys/class/infiniband/x/ports/one/state", "4: ACTIVE\n");
  std::filesystem::create_directories(root.path() / "proc/cpuinfo");
  const std::filesystem::path& path = root.path();
  EXPECT_FALSE(read_memory(path).total_bytes.has_value());
  EXPECT_FALSE(read_memory(path).limit_bytes.has_value());
  EXPECT_EQ(read_memory(path).transparent_huge_pages, "");
  EXPECT_FALSE(read_limits(path).is_known);
  EXPECT_FALSE(read_system(path).numa_balancing.has_value());
  EXPECT_EQ(read_cpu(path).num_processors, 0);
  EXPECT_TRUE(read_rdma_ports(path).empty());
  EXPECT_FALSE(mount_of(path, "/home").has_value());
}

TEST(Machine, ThisOneTellsSomething) {
  EXPECT_GE(read_cpu("/").num_processors, 1);
  EXPECT_GT(read_memory("/").total_bytes.value_or(0), 0);
  EXPECT_TRUE(read_limits("/").is_known);
  EXPECT_TRUE(mount_of("/", std::filesystem::current_path()).has_value());
  EXPECT_GT(read_space("/")->total_bytes, 0);
}

}  // namespace
}  // namespace megalith

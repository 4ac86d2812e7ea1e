#include "verify/machine_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

std::string plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

class TopicFindings {
 public:
  explicit TopicFindings(std::string topic) : topic_(std::move(topic)) {}

  void add(FindingLevel level, std::string check, std::string found, std::string remedy = "") {
    findings_.push_back({topic_, std::move(check), level, std::move(found), std::move(remedy)});
  }
  void ok(std::string check, std::string found) { add(FindingLevel::kOk, std::move(check), std::move(found)); }
  Findings take() { return std::move(findings_); }

 private:
  std::string topic_;
  Findings findings_;
};

std::string multiplies_text(const CpuFeatures& features) {
  std::vector<std::string> names;
  if (features.avx2) names.push_back("avx2");
  if (features.avx512) names.push_back("avx512");
  if (features.avx512_bf16) names.push_back("avx512_bf16");
  if (features.amx_bf16) names.push_back("amx_bf16");
  if (features.arm_bf16) names.push_back("bf16 of Arm");
  return names.empty() ? "none that matter" : join(names, ", ");
}

std::string device_list_text(const std::vector<GpuFacts::Device>& devices) {
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const GpuFacts::Device& device : devices) {
    std::string kind = device.name;
    if (!device.architecture.empty()) kind += " " + device.architecture;
    if (device.memory_bytes) kind += ", " + format_bytes(*device.memory_bytes);
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) { return one.first == kind; });
    if (found == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : kinds) parts.push_back(fmt::format("{} x {}", count, kind));
  return join(parts, "; ");
}

// GPUs the driver shows but LibTorch cannot use.
void add_unused_gpus(const GpuFacts& gpus, const VisibleDevices& visible, TopicFindings& all) {
  const bool has_match = (gpus.has_nvidia && visible.flavour == "CUDA") || (gpus.has_amd && visible.flavour == "ROCm");
  if ((!gpus.has_nvidia && !gpus.has_amd) || has_match) return;
  const std::string maker = gpus.has_nvidia ? "NVIDIA (/dev/nvidiactl)" : "AMD (/dev/kfd)";
  all.add(FindingLevel::kNote, "unused GPUs",
          fmt::format("there are GPUs of {}, which this program's {} torch cannot use", maker, visible.flavour),
          fmt::format("build against a {} torch to use them: docs/build.md", gpus.has_nvidia ? "CUDA" : "ROCm"));
}

}  // namespace

Findings check_processor(const CpuFacts& cpu, const CpuFeatures& features, int usable_cores, const MachineUse& use) {
  TopicFindings all("devices");
  all.ok("processor", fmt::format("{}, {} ({})", cpu.model.empty() ? "CPU of unknown make" : cpu.model,
                                  plural(usable_cores, "core"), plural(cpu.num_processors, "hardware thread")));
  const bool has_bf16 = features.amx_bf16 || features.avx512_bf16 || features.arm_bf16;
  const std::string names = multiplies_text(features);
  if (has_bf16) {
    all.ok("instruction sets", names + ": bf16 is multiplied in hardware");
  } else {
    all.add(FindingLevel::kNote, "instruction sets",
            names + ": bf16 is emulated on this processor, and slower than fp32",
            use.uses_gpu ? "" : "give --fp32 when speed on this processor matters");
  }
  if (!use.uses_gpu && usable_cores < use.local_world_size) {
    all.add(FindingLevel::kWarning, "cores of the ranks",
            fmt::format("{} on {}", plural(use.local_world_size, "rank"), plural(usable_cores, "core")),
            "start at most one rank a core");
  }
  if (std::find(cpu.governors.begin(), cpu.governors.end(), "powersave") != cpu.governors.end()) {
    all.add(FindingLevel::kNote, "clock", "the frequency governor is 'powersave'",
            "for steady speed: cpupower frequency-set -g performance");
  } else if (!cpu.governors.empty()) {
    all.ok("clock", "governor " + join(cpu.governors, ", "));
  }
  return all.take();
}

Findings check_threads(const ProcessorShare& share, const std::string& wait_policy) {
  TopicFindings all("devices");
  const int threads = share.threads * share.ranks;
  std::string found = fmt::format("{} on {}", plural(threads, "thread"), plural(share.processors, "processor"));
  if (share.quota > 0) found += fmt::format(", of which this container may use {:.3g}", share.quota);
  if (share.others_load >= 0.5) found += fmt::format(", which others keep busy (load {:.3g})", share.others_load);
  if (share.has_processor_for_each()) {
    all.ok("threads", found);
  } else if (lower_case(wait_policy) == "active") {
    all.add(FindingLevel::kWarning, "threads",
            found + ": OMP_WAIT_POLICY is active, so threads that wait spin away the time that others need",
            "unset OMP_WAIT_POLICY, or give fewer threads with --num_threads: a step can be twenty times as fast");
  } else {
    all.add(FindingLevel::kNote, "threads", found + ": threads that wait sleep, so that others have the processor",
            share.quota > 0 ? fmt::format("more processors for the container (docker run --cpus) make it faster") : "");
  }
  return all.take();
}

Findings check_gpus(const GpuFacts& gpus, const VisibleDevices& visible, const MachineUse& use) {
  TopicFindings all("devices");
  const int64_t count = visible.num_accelerators;
  add_unused_gpus(gpus, visible, all);
  if (!gpus.devices.empty()) all.ok("GPUs of the machine", device_list_text(gpus.devices));
  if (!gpus.nvidia_driver.empty()) all.ok("NVIDIA driver", gpus.nvidia_driver);
  if (!gpus.amd_driver.empty()) all.ok("amdgpu driver", gpus.amd_driver);
  if (visible.flavour == "CPU") {
    all.ok("GPUs", "none can be used: this torch is the CPU build");
  } else if (count == 0) {
    // A device node means a driver: devices are hidden, or the library does not fit.
    const bool has_node = visible.flavour == "CUDA" ? gpus.has_nvidia : gpus.has_amd;
    all.add(FindingLevel::kWarning, "GPUs", fmt::format("the {} torch sees none", visible.flavour),
            has_node ? "see that the driver is new enough for this torch, that the container may use the devices, and "
                       "that CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES is not empty"
                     : "install the driver; in a container pass the devices (--gpus all, or --device /dev/kfd --device "
                       "/dev/dri); --device cpu does without");
  } else {
    all.ok("GPUs", fmt::format("{} can be used ({})", count, visible.flavour));
  }
  for (const VisibleDevices::Memory& memory : visible.memory) {
    const std::string name = fmt::format("GPU {}", memory.index);
    const std::string text =
        fmt::format("{} free of {}", format_bytes(memory.free_bytes), format_bytes(memory.total_bytes));
    // Driver and context take less than a tenth.
    if (memory.free_bytes < memory.total_bytes / 10 * 9) {
      all.add(FindingLevel::kWarning, name, text + ": others use it", "see nvidia-smi or rocm-smi for who does");
    } else {
      all.ok(name, text);
    }
  }
  if (use.uses_gpu && use.local_world_size > count) {
    all.add(
        FindingLevel::kError, "ranks and GPUs",
        fmt::format("{} on this machine, and {} for them", plural(use.local_world_size, "rank"), plural(count, "GPU")),
        "start at most one rank a GPU (--nproc-per-node, --ntasks-per-node), or use --device cpu");
  }
  return all.take();
}

Findings check_memory(const MemoryFacts& memory) {
  TopicFindings all("memory");
  if (!memory.total_bytes || !memory.available_bytes) {
    all.add(FindingLevel::kNote, "main memory", "the system does not tell (/proc/meminfo)");
    return all.take();
  }
  const int64_t total = *memory.total_bytes, available = *memory.available_bytes;
  const std::string text = fmt::format("{} available of {}", format_bytes(available), format_bytes(total));
  if (available < total / 10) {
    all.add(FindingLevel::kWarning, "main memory", text, "see with top who uses it");
  } else {
    all.ok("main memory", text);
  }
  if (memory.limit_bytes && *memory.limit_bytes < total) {
    const int64_t limit = *memory.limit_bytes, used = memory.limit_used_bytes.value_or(0);
    const std::string found =
        fmt::format("this process may use {} ({} in use)", format_bytes(limit), format_bytes(used));
    const bool is_full = used > limit / 10 * 9;
    all.add(is_full ? FindingLevel::kWarning : FindingLevel::kNote, "control group", found,
            is_full ? "raise the limit (--memory, --mem), or end what else runs in the container" : "");
  }
  if (memory.swap_total_bytes && memory.swap_free_bytes) {
    const int64_t swapped = *memory.swap_total_bytes - *memory.swap_free_bytes;
    if (swapped > total / 20) {
      all.add(FindingLevel::kWarning, "swap", format_bytes(swapped) + " in use",
              "memory was short: see with top who uses it; a rank that is swapped out holds up all");
    } else if (swapped > 0) {
      all.add(FindingLevel::kNote, "swap", format_bytes(swapped) + " in use");
    } else {
      all.ok("swap", *memory.swap_total_bytes == 0 ? "none" : "not in use");
    }
  }
  if (memory.transparent_huge_pages == "never") {
    all.add(FindingLevel::kNote, "huge pages", "transparent huge pages are off: large tensors take more page faults",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  } else if (!memory.transparent_huge_pages.empty()) {
    all.ok("huge pages", "transparent: " + memory.transparent_huge_pages);
  }
  return all.take();
}

Findings check_shared_memory(const std::optional<SpaceFacts>& shm, const MachineUse& use) {
  TopicFindings all("shared memory");
  const bool is_wanted = use.uses_gpu || use.local_world_size > 1;
  const auto level = is_wanted ? FindingLevel::kWarning : FindingLevel::kNote;
  const std::string remedy =
      fmt::format("NCCL, RCCL and Open MPI exchange through it: start the container with --shm-size {}g or --ipc=host",
                  std::max(16, 2 * use.local_world_size));
  if (!shm || shm->total_bytes == 0) {
    all.add(level, "/dev/shm", "there is none", remedy);
    return all.take();
  }
  const std::string text = fmt::format("{} free of {}", format_bytes(shm->free_bytes), format_bytes(shm->total_bytes));
  const int64_t wanted = kGibibyte * use.local_world_size;
  if (shm->total_bytes < wanted) {
    all.add(level, "/dev/shm", fmt::format("{}, less than 1 GiB a rank", text), remedy);
  } else if (shm->free_bytes < wanted) {
    all.add(level, "/dev/shm", fmt::format("{}, less than 1 GiB a rank", text),
            "remove what ended runs have left there (nccl-*, torch_*), when nobody uses it");
  } else {
    all.ok("/dev/shm", text);
  }
  return all.take();
}

Findings check_numa(const SystemFacts& system, const MachineUse& use) {
  TopicFindings all("NUMA");
  if (system.num_numa_nodes > 0) all.ok("nodes", std::to_string(system.num_numa_nodes));
  if (!system.numa_balancing) {
    all.ok("balancing", "the kernel has none");
  } else if (*system.numa_balancing == 0) {
    all.ok("balancing", "off");
  } else {
    // Page migration stalls GPU reads.
    all.add(use.uses_gpu ? FindingLevel::kWarning : FindingLevel::kNote, "balancing",
            fmt::format("on (/proc/sys/kernel/numa_balancing is {}); it slows runs on GPUs", *system.numa_balancing),
            "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'");
  }
  return all.take();
}

Findings check_limits(const LimitFacts& limits, const MachineUse& use, bool has_rdma) {
  TopicFindings all("limits");
  if (!limits.is_known) {
    all.add(FindingLevel::kNote, "limits", "the system does not tell (/proc/self/limits)");
    return all.take();
  }
  const auto text = [](const std::optional<int64_t>& value) { return value ? std::to_string(*value) : "unlimited"; };
  // A rank has a few connections to every other, and data files.
  const int64_t files_wanted = 512 + int64_t{16} * use.world_size;
  if (limits.open_files && *limits.open_files < files_wanted) {
    all.add(FindingLevel::kWarning, "open files (-n)",
            fmt::format("{}; {} would want {}", *limits.open_files, plural(use.world_size, "rank"), files_wanted),
            fmt::format("ulimit -n {}", limits.open_files_hard && *limits.open_files_hard < files_wanted
                                            ? "65536, by root: the hard limit is " + text(limits.open_files_hard)
                                            : text(limits.open_files_hard)));
  } else {
    all.ok("open files (-n)", text(limits.open_files));
  }
  const std::string locked = limits.locked_bytes ? format_bytes(*limits.locked_bytes) : "unlimited";
  if (has_rdma && limits.locked_bytes) {
    all.add(FindingLevel::kWarning, "locked memory (-l)", locked + ", and there are RDMA devices, which lock theirs",
            "ulimit -l unlimited; in a container --ulimit memlock=-1");
  } else {
    all.ok("locked memory (-l)", locked);
  }
  constexpr int64_t kFewProcesses = 4096;
  if (limits.processes && *limits.processes < kFewProcesses) {
    all.add(FindingLevel::kWarning, "processes (-u)", text(limits.processes) + "; threads count as well",
            fmt::format("ulimit -u {} or more", kFewProcesses));
  } else {
    all.ok("processes (-u)", text(limits.processes));
  }
  return all.take();
}

Findings check_rdma(std::span<const RdmaPort> ports, const MachineUse& use) {
  TopicFindings all("ports");
  if (ports.empty()) {
    const bool is_slow = use.uses_gpu && use.world_size > use.local_world_size;
    all.add(is_slow ? FindingLevel::kWarning : FindingLevel::kOk, "RDMA devices", "none",
            is_slow ? "GPUs of several machines will talk over TCP; in a container pass --device /dev/infiniband" : "");
    return all.take();
  }
  const bool has_active =
      std::any_of(ports.begin(), ports.end(), [](const RdmaPort& port) { return port.is_active(); });
  for (const RdmaPort& port : ports) {
    const std::string name = fmt::format("RDMA {}:{}", port.device, port.port);
    std::string text = port.state.empty() ? "state unknown" : port.state;
    for (const std::string& more : {port.rate, port.link_layer}) {
      if (!more.empty()) text += ", " + more;
    }
    if (port.is_active()) {
      all.ok(name, text);
    } else {
      // An unplugged second port is usual.
      all.add(has_active ? FindingLevel::kNote : FindingLevel::kWarning, name, text,
              has_active ? "" : "see the cable and the driver (ibstat), or set NCCL_IB_DISABLE=1");
    }
  }
  return all.take();
}

}  // namespace megalith

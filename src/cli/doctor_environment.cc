// Doctor's checks of one machine: passes facts read by device/ and launch/ to the checks of verify/.
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "cli/doctor.h"
#include "core/error.h"
#include "core/strings.h"
#include "device/device.h"
#include "device/gpu_architecture.h"
#include "device/machine.h"
#include "device/machine_access.h"
#include "device/memory.h"
#include "device/threads.h"
#include "launch/back_ends.h"
#include "ops/operators.h"
#include "storage/s3_settings.h"
#include "train/inputs.h"
#include "train/memory_estimate.h"
#include "verify/access_check.h"
#include "verify/folder_check.h"
#include "verify/hub_check.h"
#include "verify/library_check.h"
#include "verify/machine_check.h"
#include "verify/network_check.h"
#include "verify/torch_build.h"
#include "verify/variable_check.h"

namespace megalith {
namespace {

constexpr const char* kMachineRoot = "/";

// Querying a GPU's memory takes some of it, in each process: with several ranks, each queries its own.
VisibleDevices visible_devices(const TorchBuild& torch, const Launch& launch) {
  VisibleDevices visible{.flavour = torch.flavour, .num_accelerators = accelerator_count(), .memory = {}};
  for (int i = 0; i < visible.num_accelerators; ++i) {
    if (launch.local_world_size > 1 && i != launch.local_rank) continue;
    const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(narrow<c10::DeviceIndex>(i));
    visible.memory.push_back({i, static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)});
  }
  return visible;
}

// Number of operator functions per implementation on a run's device: "37 own kernel", or "4 own kernel, 5 LibTorch, 28
// reference".
std::string operators_text(bool uses_gpu) {
  const bool on_gpu = uses_gpu && accelerator_count() > 0;
  const at::Device device = on_gpu ? at::Device(*at::accelerator::getAccelerator(/*checked=*/true), 0) : at::kCPU;
  std::map<ops::Origin, int> counts;
  for (const ops::OperatorOrigin& one : ops::list_operators(device)) ++counts[one.origin];
  std::string text;
  for (const auto& [origin, count] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, ops::name_of(origin));
  }
  return text;
}

// Threads that a run would have here.
Findings check_run_threads(const DoctorCase& one) {
  const std::optional<int64_t>& wanted = one.resolved.config.runtime.threads.num_threads;
  const int ranks = one.launch.local_world_size;
  const int threads = wanted ? narrow<int>(*wanted) : default_num_threads(ranks);
  const auto policy = one.environment.find("OMP_WAIT_POLICY");
  return check_threads(processor_share(threads, ranks), policy == one.environment.end() ? "" : policy->second);
}

// Nothing if the run uses no GPU, or has none.
std::optional<std::string> architecture_of_run(bool uses_gpu, int local_rank) {
  const int count = accelerator_count();
  if (!uses_gpu || count == 0) return std::nullopt;
  const int index = count == 1 ? 0 : std::min(local_rank, count - 1);
  return architecture_of(at::Device(*at::accelerator::getAccelerator(), narrow<c10::DeviceIndex>(index)));
}

Findings check_versions(const DoctorCase& one, const TorchBuild& torch, const SystemFacts& system) {
  Findings findings = {{"versions", "megalith", FindingLevel::kOk, std::string(kProgramVersion), ""}};
  append(findings, check_torch(torch));
  const auto add = [&](FindingLevel level, std::string check, std::string found, std::string remedy = "") {
    findings.push_back({"versions", std::move(check), level, std::move(found), std::move(remedy)});
  };
  const BackEnds ends = back_ends();
  // Missing libraries only matter to several ranks on such devices.
  const auto level_without = [&](bool is_needed) {
    if (!is_needed) return FindingLevel::kNote;
    return one.launch.world_size > 1 ? FindingLevel::kError : FindingLevel::kWarning;
  };
  if (ends.has_gloo) {
    add(FindingLevel::kOk, "Gloo", "torch's own");
  } else {
    add(level_without(!one.uses_gpu), "Gloo", "not built in: several ranks cannot work together on CPUs",
        "install libgloo-dev and build again (make)");
  }
  if (ends.has_nccl) {
    // RCCL's version is among the libraries below.
    if (torch.flavour != "ROCm" || ends.nccl_version.empty()) {
      add(FindingLevel::kOk, torch.flavour == "ROCm" ? "RCCL" : "NCCL",
          ends.nccl_version.empty() ? "of unknown version" : ends.nccl_version);
    }
  } else if (torch.flavour != "CPU") {
    add(level_without(one.uses_gpu), "NCCL", "not built in: several ranks cannot work together on GPUs",
        "build again with nccl.h or rccl/rccl.h there (make)");
  }
  LibraryVersions libraries = loaded_library_versions();
  if (torch.flavour == "ROCm") {
    const RocmInstallation installed = read_rocm(kMachineRoot);
    libraries.rocm = installed.rocm;
    libraries.hipblaslt = installed.hipblaslt;
    libraries.rccl = ends.nccl_version;
  }
  append(findings, check_gpu_libraries(libraries));
  add(FindingLevel::kOk, "operators", operators_text(one.uses_gpu));
  findings.push_back(check_kernels(architecture_of_run(one.uses_gpu, one.launch.local_rank), built_architectures()));
  add(FindingLevel::kOk, "kernel", system.kernel.empty() ? "unknown" : system.kernel);
  add(FindingLevel::kOk, "C library", fmt::format("glibc {}", gnu_get_libc_version()));
#if defined(__clang__)
  add(FindingLevel::kOk, "compiler", __VERSION__);  // "Clang 16.0.6"
#else
  add(FindingLevel::kOk, "compiler", "GCC " __VERSION__);
#endif
  return findings;
}

// The configured model's memory against what this rank has.
Findings check_model_memory(const DoctorCase& one, const VisibleDevices& visible, const MemoryFacts& memory) {
  if (!one.has_model) return {};
  const MemoryEstimate estimate = estimate_memory(one.resolved, one.launch.rank);
  const int64_t needed = estimate.total();
  int64_t there = 0;
  if (one.uses_gpu) {
    const auto own = std::find_if(visible.memory.begin(), visible.memory.end(), [&](const VisibleDevices::Memory& gpu) {
      return gpu.index == one.launch.local_rank;
    });
    if (own == visible.memory.end()) return {};
    there = own->free_bytes;
  } else {
    if (!memory.available_bytes) return {};
    there = *memory.available_bytes;
    if (memory.limit_bytes) there = std::min(there, *memory.limit_bytes - memory.limit_used_bytes.value_or(0));
    there /= one.launch.local_world_size;
  }
  Finding finding{"memory", "model", FindingLevel::kOk, "", ""};
  finding.found = fmt::format(
      "rank {} of {} takes about {} for weights, gradients and optimizer and {} for activations; {} are there for it",
      one.launch.rank, one.resolved.derived.world_size, format_bytes(estimate.state()),
      format_bytes(estimate.activations + estimate.logits), format_bytes(there));
  if (needed > there) {
    finding.level = estimate.state() > there ? FindingLevel::kError : FindingLevel::kWarning;
    finding.remedy =
        "more ranks with --tensor_model_parallel_size, --pipeline_model_parallel_size or --use_torch_fsdp2; "
        "--use_distributed_optimizer; for activations --recompute_granularity full or a smaller --micro_batch_size";
  }
  return {finding};
}

Findings check_folders(const DoctorCase& one) {
  if (one.launch.local_rank != 0) return {};
  const Config& config = one.resolved.config;
  std::vector<std::pair<std::string, std::string>> folders;
  const auto& save = config.checkpoint.save;
  if (save && !is_object_url(*save)) folders.emplace_back("save", *save);
  if (config.data.data_cache_path) folders.emplace_back("data_cache_path", *config.data.data_cache_path);
  const auto temporary = one.environment.find("TMPDIR");
  if (temporary != one.environment.end() && !temporary->second.empty())
    folders.emplace_back("TMPDIR", temporary->second);
  if (!config.checkpoint.save) folders.emplace_back("current folder", ".");
  Findings findings;
  for (const auto& [purpose, path] : folders) {
    std::error_code error;
    const std::filesystem::path shown =
        path == "." ? std::filesystem::current_path(error) : std::filesystem::path(path);
    append(findings, check_folder(probe_folder(purpose, shown, one.options.disk_probe_mib << 20, kMachineRoot)));
  }
  return findings;
}

// Tokenizer problems that a run would refuse.
Findings check_tokenizers(const DoctorCase& one) {
  if (one.launch.local_rank != 0) return {};
  std::vector<UserError> errors;
  append_other_tokenizers(one.resolved, errors);
  Findings findings;
  for (const UserError& error : errors) {
    findings.push_back({"data", "tokenizer", FindingLevel::kError, error.message(), error.remedy()});
  }
  return findings;
}

}  // namespace

Findings check_environment(const DoctorCase& one) {
  const MachineUse use{
      .uses_gpu = one.uses_gpu, .local_world_size = one.launch.local_world_size, .world_size = one.launch.world_size};
  const TorchBuild torch = torch_build();
  const VisibleDevices visible = visible_devices(torch, one.launch);
  const GpuFacts gpus = read_gpus(kMachineRoot);
  const MemoryFacts memory = read_memory(kMachineRoot);
  const SystemFacts system = read_system(kMachineRoot);
  const HostNetwork host = this_host();
  Findings all = check_processor(read_cpu(kMachineRoot), cpu_features(), usable_cores(), use);
  if (!use.uses_gpu && one.launch.local_rank == 0) append(all, check_run_threads(one));
  append(all, check_gpus(gpus, visible, use));
  const AccessFacts access = read_access(kMachineRoot);
  append(all, check_device_access(access, use, torch.flavour == "ROCm", !host.rdma_ports.empty()));
  append(all, check_gpu_clocks(read_gpu_clock_levels(kMachineRoot)));
  append(all, check_memory(memory));
  append(all, check_model_memory(one, visible, memory));
  append(all, check_versions(one, torch, system));
  append(all, check_network(one.launch, one.uses_gpu, one.environment, host));
  append(all, check_rdma(host.rdma_ports, use));
  append(all, check_firewalls(read_firewalls(kMachineRoot), use));
  append(all, check_shared_memory(read_space("/dev/shm"), use));
  append(all, check_numa(system, use));
  append(all, check_limits(read_limits(kMachineRoot), use, !host.rdma_ports.empty()));
  append(all, check_tracing(access));
  append(all, check_folders(one));
  append(all, check_tokenizers(one));
  append(all, check_variables(one.environment, use, usable_cores(), gpus.has_amd));
  if (one.options.hub && one.launch.local_rank == 0) {
    append(all, check_hub(read_hub_settings(one.environment, one.resolved.config.hub)));
  }
  return all;
}

SpeedReport check_device_speed(const DoctorCase& one) {
  SpeedReport report;
  try {
    const c10::Device device = select_device(one.resolved.config.runtime.device.device, one.launch.local_rank);
    if (device.is_cpu()) {
      report.device = "processor";
    } else {
      const std::vector<GpuFacts::Device> devices = read_gpus(kMachineRoot).devices;
      const std::string name = devices.empty() ? "" : devices.front().name;
      report.expected = expected_speeds(name, architecture_of(device));
      report.device = fmt::format("GPU {}, {}", device.index(), report.expected ? report.expected->kind : name);
    }
    report.rows = measure_speeds(device, speed_sizes(device), /*with_peer=*/one.launch.world_size == 1);
    if (report.expected) add_expected(report.rows, *report.expected);
    report.findings = check_speeds(report.rows);
  } catch (const UserError& error) {
    report.findings.push_back({"speed", "device", FindingLevel::kError, error.message(), error.remedy()});
  }
  return report;
}

}  // namespace megalith

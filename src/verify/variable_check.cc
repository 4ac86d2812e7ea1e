// Sources: NCCL's manual, "Environment Variables"; PyTorch's notes "CUDA Environment Variables" and "CUDA semantics";
// ROCm's "HIP environment variables"; the recipes of Primus and ROCm's Megatron-LM.
#include "verify/variable_check.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/strings.h"

namespace megalith {
namespace {

bool is_switched_on(std::string_view value) {
  const std::string word = lower_case(value);
  return !word.empty() && word != "0" && word != "false" && word != "off";
}

struct KnownSwitch {
  std::string_view name;
  FindingLevel level;
  std::string_view effect;  // when on
};

constexpr KnownSwitch kSwitches[] = {
    {"CUDA_LAUNCH_BLOCKING", FindingLevel::kWarning, "every kernel is waited for: for debugging, several times slower"},
    {"HIP_LAUNCH_BLOCKING", FindingLevel::kWarning, "every kernel is waited for: for debugging, several times slower"},
    {"AMD_SERIALIZE_KERNEL", FindingLevel::kWarning, "kernels run one after another: for debugging"},
    {"AMD_SERIALIZE_COPY", FindingLevel::kWarning, "copies run one after another: for debugging"},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", FindingLevel::kWarning,
     "GPU memory is allocated anew every time: for debugging"},
    {"PYTORCH_NO_HIP_MEMORY_CACHING", FindingLevel::kWarning, "GPU memory is allocated anew every time: for debugging"},
    {"NCCL_P2P_DISABLE", FindingLevel::kWarning, "GPUs of a machine talk through main memory, several times slower"},
    {"NCCL_SHM_DISABLE", FindingLevel::kWarning, "GPUs without a direct link talk over the network"},
    {"NCCL_IB_DISABLE", FindingLevel::kWarning, "machines talk over TCP, even with RDMA devices"},
    {"TORCH_NCCL_BLOCKING_WAIT", FindingLevel::kNote, "the host waits for collectives, which then hide less"},
    {"TORCH_NCCL_DESYNC_DEBUG", FindingLevel::kNote, "every collective is noted, which costs time"},
};

// Their effect depends on the value.
constexpr std::array kListed = std::to_array<std::string_view>({"CUDA_VISIBLE_DEVICES",
                                                                "HIP_VISIBLE_DEVICES",
                                                                "ROCR_VISIBLE_DEVICES",
                                                                "CUDA_DEVICE_MAX_CONNECTIONS",
                                                                "GPU_MAX_HW_QUEUES",
                                                                "NCCL_SOCKET_IFNAME",
                                                                "GLOO_SOCKET_IFNAME",
                                                                "NCCL_IB_HCA",
                                                                "NCCL_IB_GID_INDEX",
                                                                "NCCL_IB_TC",
                                                                "NCCL_ALGO",
                                                                "NCCL_PROTO",
                                                                "NCCL_MIN_NCHANNELS",
                                                                "NCCL_MAX_NCHANNELS",
                                                                "NCCL_NET_GDR_LEVEL",
                                                                "NCCL_CROSS_NIC",
                                                                "NCCL_BUFFSIZE",
                                                                "NCCL_NVLS_ENABLE",
                                                                "NCCL_DEBUG",
                                                                "NCCL_DEBUG_FILE",
                                                                "NCCL_TOPO_FILE",
                                                                "RCCL_MSCCL_ENABLE",
                                                                "RCCL_MSCCLPP_ENABLE",
                                                                "HSA_NO_SCRATCH_RECLAIM",
                                                                "HSA_ENABLE_SDMA",
                                                                "HSA_FORCE_FINE_GRAIN_PCIE",
                                                                "HSA_OVERRIDE_GFX_VERSION",
                                                                "PYTORCH_ALLOC_CONF",
                                                                "PYTORCH_CUDA_ALLOC_CONF",
                                                                "PYTORCH_HIP_ALLOC_CONF",
                                                                "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                                                "TORCH_NCCL_AVOID_RECORD_STREAMS",
                                                                "ATEN_CPU_CAPABILITY",
                                                                "OMP_NUM_THREADS",
                                                                "OMP_PROC_BIND",
                                                                "OMP_PLACES",
                                                                "OMP_WAIT_POLICY",
                                                                "GOMP_CPU_AFFINITY",
                                                                "KMP_AFFINITY",
                                                                "MKL_NUM_THREADS",
                                                                "MALLOC_ARENA_MAX",
                                                                "LD_PRELOAD",
                                                                "TMPDIR"});

constexpr std::string_view kShared =
    "CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE "
    "TORCH_BLAS_PREFER_CUBLASLT TORCH_BLAS_PREFER_HIPBLASLT TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED "
    "HIPBLASLT_ALLOW_TF32 ROCBLAS_INTERNAL_FP16_ALT_IMPL ATEN_CPU_CAPABILITY MKL_CBWR ONEDNN_MAX_CPU_ISA "
    "DNNL_MAX_CPU_ISA NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS "
    "NCCL_NTHREADS NCCL_BUFFSIZE NCCL_NVLS_ENABLE NCCL_COLLNET_ENABLE NCCL_CROSS_NIC NCCL_P2P_DISABLE "
    "NCCL_P2P_NET_CHUNKSIZE NCCL_PXN_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_LAUNCH_ORDER_IMPLICIT "
    "RCCL_MSCCL_ENABLE RCCL_MSCCLPP_ENABLE TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ASYNC_ERROR_HANDLING "
    "TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HIGH_PRIORITY";

class VariableFindings {
 public:
  void add(FindingLevel level, std::string_view check, std::string found, std::string remedy = "") {
    findings_.push_back({"environment", std::string(check), level, std::move(found), std::move(remedy)});
  }
  Findings take() { return std::move(findings_); }

 private:
  Findings findings_;
};

void add_threads(const std::string& text, const MachineUse& use, int usable_cores, VariableFindings& all) {
  const int64_t threads = std::atoll(text.c_str());
  const int64_t wanted = threads * use.local_world_size;
  if (threads < 1) {
    all.add(FindingLevel::kWarning, "OMP_NUM_THREADS", fmt::format("'{}' is no number of threads", text),
            "unset it, or give --num_threads");
  } else if (wanted > usable_cores) {
    all.add(FindingLevel::kWarning, "OMP_NUM_THREADS",
            fmt::format("{} threads for each of {} rank{} are more than the {} core{}", threads, use.local_world_size,
                        use.local_world_size == 1 ? "" : "s", usable_cores, usable_cores == 1 ? "" : "s"),
            "unset it: the ranks then share the cores");
  } else if (!use.uses_gpu && threads == 1 && usable_cores >= 2 * use.local_world_size) {
    all.add(FindingLevel::kNote, "OMP_NUM_THREADS",
            fmt::format("1 thread a rank, where {} cores are for each (torchrun sets it when nothing else does)",
                        usable_cores / use.local_world_size),
            fmt::format("--num_threads {}", usable_cores / use.local_world_size));
  }
}

}  // namespace

std::vector<std::string> shared_variables() { return split_words(kShared); }

Findings check_variables(const EnvironmentMap& environment, const MachineUse& use, int usable_cores,
                         bool has_amd_gpus) {
  VariableFindings all;
  const auto value = [&](std::string_view name) {
    const auto found = environment.find(std::string(name));
    return found == environment.end() ? std::string() : found->second;
  };
  for (const KnownSwitch& one : kSwitches) {
    if (!is_switched_on(value(one.name))) continue;
    all.add(one.level, one.name, fmt::format("{}: {}", value(one.name), one.effect),
            one.level == FindingLevel::kWarning ? fmt::format("unset {}", one.name) : "");
  }
  const std::string debug = lower_case(value("NCCL_DEBUG"));
  if (debug == "info" || debug == "trace") {
    all.add(FindingLevel::kNote, "NCCL_DEBUG",
            value("NCCL_DEBUG") + ": every rank prints much; WARN says what matters");
  }
  for (const std::string_view name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
    if (environment.contains(std::string(name)) && trim(value(name)).empty()) {
      all.add(FindingLevel::kWarning, name, "is set and empty: all GPUs are hidden", fmt::format("unset {}", name));
    }
  }
  if (const std::string threads = value("OMP_NUM_THREADS"); !threads.empty()) {
    add_threads(threads, use, usable_cores, all);
  }
  if (has_amd_gpus && use.uses_gpu && value("HSA_NO_SCRATCH_RECLAIM") != "1") {
    all.add(FindingLevel::kNote, "HSA_NO_SCRATCH_RECLAIM",
            "not 1: ROCm may stop to take scratch memory back between kernels", "export HSA_NO_SCRATCH_RECLAIM=1");
  }
  std::vector<std::string> set;
  for (const std::string_view name : kListed) {
    if (const std::string text = value(name); !text.empty()) set.push_back(fmt::format("{}={}", name, text));
  }
  all.add(FindingLevel::kOk, "variables that are set", set.empty() ? "none of the known ones" : join(set, ", "));
  return all.take();
}

}  // namespace megalith

// The table's rows about variables of the processes: what libraries below this program read. A value that is set
// already is kept.
#include "compat/variable.h"

namespace megalith {
namespace {

constexpr FrontEnds kDeepseekV3 = only(FrontEnd::kDeepseekV3);
using ExportDefaults = std::vector<std::pair<FrontEnds, std::string_view>>;

ScriptVariable exported(std::string_view name, FrontEnds front_ends, std::string_view help, std::string_view source,
                        ExportDefaults defaults = {}) {
  return {{name}, VariableKind::kExported, VariableType::kText, front_ends, help, source, std::move(defaults)};
}

}  // namespace

std::vector<ScriptVariable> exported_variables() {
  constexpr std::string_view kScripts = "all scripts";
  constexpr std::string_view kPrimusScript = "run_pretrain.sh";
  constexpr std::string_view kForRccl = "Read by RCCL.", kForNccl = "Read by NCCL and RCCL.";
  constexpr std::string_view kForRocm = "Read by ROCm.", kForTorch = "Read by LibTorch.";
  constexpr std::string_view kReport = "pytorch_benchmark_report.sh";
  constexpr std::string_view kForTe = "Read by Transformer Engine, which is not here.";
  std::vector<ScriptVariable> rows = {
      exported("NCCL_IB_HCA", kTrainingScripts,
               "RDMA devices. Without it all active ports but those with bond or eth in their name.", "000:219"),
      exported("NCCL_SOCKET_IFNAME", kTrainingScripts,
               "Interface of the GPUs' processes. Without it the one that leads to MASTER_ADDR, with several machines.",
               "000:153"),
      exported("GLOO_SOCKET_IFNAME", kTrainingScripts, "The same for tensors on processors.", "000:155"),
      exported("NCCL_IB_GID_INDEX", kTrainingScripts, "3 is RoCE version 2.", "001:431", {{kMegatronScripts, "3"}}),
      exported("NCCL_DEBUG", kTrainingScripts, kForNccl, "002:918"),
      exported("NCCL_CHECKS_DISABLE", kTrainingScripts, kForNccl, kScripts, {{kMegatronScripts, "1"}}),
      exported("NCCL_CROSS_NIC", kTrainingScripts, kForNccl, kScripts, {{kMegatronScripts, "0"}}),
      exported("NCCL_PROTO", kRocmScripts, kForNccl, kScripts, {{kRocmScripts, "Simple"}}),
      exported("NCCL_PXN_DISABLE", kPrimusScripts, kForNccl, kPrimusScript, {{kPrimusScripts, "1"}}),
      exported("NCCL_P2P_NET_CHUNKSIZE", kPrimusScripts, kForNccl, kPrimusScript, {{kPrimusScripts, "524288"}}),
      exported("TORCH_NCCL_HIGH_PRIORITY", kTrainingScripts, kForTorch, kScripts,
               {{kMegatronScripts, "1"}, {kBenchmarkScripts, "0"}}),
      exported("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", kPrimusScripts, kForTorch, kPrimusScript,
               {{kPrimusScripts, "0"}}),
      exported("RCCL_MSCCL_ENABLE", kTrainingScripts, kForRccl, kScripts, {{kMegatronScripts, "0"}}),
      exported("RCCL_MSCCLPP_ENABLE", kPrimusScripts, kForRccl, kPrimusScript, {{kPrimusScripts, "0"}}),
      exported("RCCL_MSCCLPP_FORCE_ENABLE", kPrimusScripts, kForRccl, kPrimusScript, {{kPrimusScripts, "0"}}),
      exported("RCCL_MSCCLPP_THRESHOLD", kPrimusScripts, kForRccl, kPrimusScript, {{kPrimusScripts, "1073741824"}}),
      exported("MSCCLPP_DISABLE_CHANNEL_CACHE", kPrimusScripts, kForRccl, kPrimusScript, {{kPrimusScripts, "FALSE"}}),
      exported("GPU_MAX_HW_QUEUES", kTrainingScripts, kForRocm, kScripts,
               {{kMegatronScripts, "2"}, {kBenchmarkScripts, "8"}}),
      exported("HSA_NO_SCRATCH_RECLAIM", kTrainingScripts, kForRocm, "001:244",
               {{kRocmScripts, "1"}, {kPrimusScripts, "0"}}),
      exported("HSA_ENABLE_SDMA", kDeepseekV3 | kPrimusScripts, kForRocm, kScripts,
               {{kDeepseekV3, "0"}, {kPrimusScripts, "1"}}),
      exported("CUDA_DEVICE_MAX_CONNECTIONS", kTrainingScripts, "Read by CUDA and ROCm. FSDP=1 leaves it out.",
               kScripts, {{kMegatronScripts, "1"}}),
      exported("TOKENIZERS_PARALLELISM", kRocmScripts, "Read by Hugging Face's tokenizers.", kScripts,
               {{kRocmScripts, "false"}}),
      exported("NVTE_CK_USES_BWD_V3", kDeepseekV3 | kPrimusScripts, kForTe, "001:245",
               {{kDeepseekV3, "1"}, {kPrimusScripts, "0"}}),
      exported("NVTE_USE_CAST_TRANSPOSE_TRITON", kPrimusScripts, kForTe, kPrimusScript, {{kPrimusScripts, "1"}}),
      exported("NVTE_USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE", kPrimusScripts, kForTe, kPrimusScript,
               {{kPrimusScripts, "0"}}),
      exported("NVTE_DEBUG", kPrimusScripts, kForTe, kPrimusScript, {{kPrimusScripts, "0"}}),
      exported("PATCH_TE_FLASH_ATTN", kPrimusScripts, kForTe, kPrimusScript, {{kPrimusScripts, "0"}}),
      exported("ROCBLAS_USE_HIPBLASLT", kBenchmarkScripts, kForRocm, kReport, {{kBenchmarkScripts, "1"}}),
      exported("DISABLE_ADDMM_CUDA_LT", kBenchmarkScripts, kForTorch, kReport, {{kBenchmarkScripts, "0"}}),
      exported("HIP_FORCE_DEV_KERNARG", kBenchmarkScripts, kForRocm, kReport, {{kBenchmarkScripts, "1"}}),
      exported("HF_HOME", kAllFrontEnds, "Where the hub's cache lies.", kPrimusScript),
      exported("HF_TOKEN", kAllFrontEnds, "The hub's token.", "000:161"),
      exported("WANDB_API_KEY", kLlamas, "The token of Weights & Biases.", "train_llama3.sh (2026)"),
  };
  for (ScriptVariable& row : rows) row.is_secret = row.name() == "HF_TOKEN" || row.name() == "WANDB_API_KEY";
  return rows;
}

}  // namespace megalith

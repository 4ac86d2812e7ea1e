// TORCH_NCCL_AVOID_RECORD_STREAMS is the default since LibTorch 2.7; setting it warns.
#include "device/gpu_settings.h"

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "device/machine.h"

namespace megalith {
namespace {

GpuSetting variable(std::string name, std::string value) {
  std::vector<std::string> itself = {name};
  return {GpuSettingKind::kVariable, std::move(name), std::move(value), std::move(itself)};
}

// "NVIDIA B200", "NVIDIA GB300", "NVIDIA RTX PRO 6000 Blackwell Server Edition". Unknown names count as older, to be
// safe.
bool is_blackwell(const std::string& name) {
  if (name.find("Blackwell") != std::string::npos) return true;
  for (const std::string_view series : {" B", " GB"}) {
    const size_t at = name.find(series);
    if (at == std::string::npos) continue;
    const size_t digit = at + series.size();
    if (digit < name.size() && std::isdigit(static_cast<unsigned char>(name[digit]))) return true;
  }
  return false;
}

}  // namespace

std::vector<GpuSetting> wanted_gpu_settings(const GpuSettingFacts& facts) {
  if (facts.vendor == GpuVendor::kNone) return {};
  std::vector<GpuSetting> settings;
  if (facts.vendor == GpuVendor::kNvidia) {
    // Against fragmentation by varying sizes.
    settings.push_back(
        {GpuSettingKind::kAllocator, "expandable_segments", "True", {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}});
    // 32 MiB: cuBLAS may choose any algorithm, repeatably.
    settings.push_back(variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8"));
    settings.push_back(variable("TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED", "1"));
    // One queue keeps issue order, so a tensor-parallel collective starts before the product that hides it. Blackwell
    // keeps it anyway, and FSDP's gathers, issued a unit ahead, would wait there for the unit's products.
    const bool keeps_order = !facts.gpu_names.empty() && std::ranges::all_of(facts.gpu_names, is_blackwell);
    const bool wants_one_queue = facts.tensor_parallel_size > 1 && !facts.is_fsdp && !keeps_order;
    settings.push_back(variable("CUDA_DEVICE_MAX_CONNECTIONS", wants_one_queue ? "1" : "32"));
    // The same kernel order on every rank's communicators.
    if (facts.world_size > 1) settings.push_back(variable("NCCL_LAUNCH_ORDER_IMPLICIT", "1"));
  }
  settings.push_back({GpuSettingKind::kReductions, "reductions of 16-bit products in 16 bits", "off", {}});
  return settings;
}

GpuSettingFacts gpu_setting_facts(DeviceChoice choice, int tensor_parallel_size, bool is_fsdp, int world_size) {
  GpuSettingFacts facts;
  if (choice == DeviceChoice::kCpu) return facts;
  // Asking for a device would start the driver, which reads its variables then.
  if (at::Context::hasROCM()) {
    facts.vendor = GpuVendor::kAmd;
  } else if (at::Context::hasCUDART()) {
    facts.vendor = GpuVendor::kNvidia;
  }
  if (facts.vendor == GpuVendor::kNone) return facts;
  for (const GpuFacts::Device& gpu : read_gpus("/").devices) facts.gpu_names.push_back(gpu.name);
  facts.tensor_parallel_size = tensor_parallel_size;
  facts.is_fsdp = is_fsdp;
  facts.world_size = world_size;
  return facts;
}

std::vector<GpuSettingInForce> apply_gpu_settings(const std::vector<GpuSetting>& settings) {
  std::vector<GpuSettingInForce> in_force;
  for (const GpuSetting& setting : settings) {
    const auto given = std::ranges::find_if(
        setting.variables, [](const std::string& name) { return std::getenv(name.c_str()) != nullptr; });
    if (given != setting.variables.end()) {
      in_force.push_back({*given, std::getenv(given->c_str()), "the environment"});
      continue;
    }
    switch (setting.kind) {
      case GpuSettingKind::kVariable:
        ::setenv(setting.name.c_str(), setting.value.c_str(), /*overwrite=*/1);
        break;
      case GpuSettingKind::kAllocator:
        c10::CachingAllocator::setAllocatorSettings(fmt::format("{}:{}", setting.name, setting.value));
        break;
      case GpuSettingKind::kReductions:
        at::globalContext().setAllowBF16ReductionCuBLAS(false);
        at::globalContext().setAllowFP16ReductionCuBLAS(false);
        break;
    }
    in_force.push_back({setting.name, setting.value, "megalith"});
  }
  return in_force;
}

std::string gpu_settings_text(const std::vector<GpuSettingInForce>& settings) {
  std::string text;
  for (const GpuSettingInForce& setting : settings) {
    text += fmt::format("{}  {:<44} {}  (set by {})", text.empty() ? "settings for GPUs:\n" : "\n", setting.name,
                        setting.value, setting.set_by);
  }
  return text;
}

}  // namespace megalith

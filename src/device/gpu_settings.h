// Settings of CUDA, cuBLAS, NCCL and LibTorch for training, set before the first use of a GPU unless the environment
// has them; docs/gpu.md gives the reasons.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace megalith {

enum class GpuVendor { kNone, kNvidia, kAmd };

// Determined without asking the GPU, which would begin its use.
struct GpuSettingFacts {
  GpuVendor vendor = GpuVendor::kNone;  // whose GPUs this LibTorch drives
  std::vector<std::string> gpu_names;   // of this machine, from the driver ("NVIDIA H200")
  int tensor_parallel_size = 1;
  int world_size = 1;
};

enum class GpuSettingKind {
  kVariable,   // of the environment, read by libraries later
  kAllocator,  // of LibTorch's allocator, in the words of PYTORCH_ALLOC_CONF
  kReductions  // products of 16-bit numbers may accumulate in 16 bits
};

struct GpuSetting {
  GpuSettingKind kind = GpuSettingKind::kVariable;
  std::string name, value;
  std::vector<std::string> variables;  // of the environment, which override it
};

// Pure.
std::vector<GpuSetting> wanted_gpu_settings(const GpuSettingFacts& facts);

// The facts of this process; none if it will compute on the CPU.
GpuSettingFacts gpu_setting_facts(DeviceChoice choice, int tensor_parallel_size, int world_size);

struct GpuSettingInForce {
  std::string name, value;
  std::string set_by;  // "megalith" or "the environment"

  bool operator==(const GpuSettingInForce&) const = default;
};

// For main functions, before a GPU's first use: variables and LibTorch's switches are process-wide.
std::vector<GpuSettingInForce> apply_gpu_settings(const std::vector<GpuSetting>& settings);

// For the start-up report; empty without settings.
std::string gpu_settings_text(const std::vector<GpuSettingInForce>& settings);

}  // namespace megalith

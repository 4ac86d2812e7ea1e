// Settings of CUDA, cuBLAS, NCCL and LibTorch that training wants and whose defaults are for other uses. The program
// sets them before it first uses a GPU, unless the environment has them; docs/gpu.md says why each is wanted.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace megalith {

enum class GpuVendor { kNone, kNvidia, kAmd };

// What the choice depends on. Nothing of it asks the GPU, which would begin its use.
struct GpuSettingFacts {
  GpuVendor vendor = GpuVendor::kNone;  // whose GPUs this LibTorch drives
  std::vector<std::string> gpu_names;   // of this machine, as the driver tells them ("NVIDIA H200")
  int tensor_parallel_size = 1;
  int world_size = 1;
};

enum class GpuSettingKind {
  kVariable,   // of the environment, for libraries that read it later
  kAllocator,  // of LibTorch's allocator, in the words of PYTORCH_ALLOC_CONF
  kReductions  // whether products of 16-bit numbers may add up in 16 bits
};

struct GpuSetting {
  GpuSettingKind kind = GpuSettingKind::kVariable;
  std::string name, value;
  std::vector<std::string> variables;  // of the environment that decide it, if one is there
};

// Pure.
std::vector<GpuSetting> wanted_gpu_settings(const GpuSettingFacts& facts);

// The facts of this process; none where it will compute on the CPU.
GpuSettingFacts gpu_setting_facts(DeviceChoice choice, int tensor_parallel_size, int world_size);

struct GpuSettingInForce {
  std::string name, value;
  std::string set_by;  // "megalith" or "the environment"

  bool operator==(const GpuSettingInForce&) const = default;
};

// For main functions, before a GPU's first use: variables and LibTorch's switches belong to the process.
std::vector<GpuSettingInForce> apply_gpu_settings(const std::vector<GpuSetting>& settings);

// For the start-up report; empty without settings.
std::string gpu_settings_text(const std::vector<GpuSettingInForce>& settings);

}  // namespace megalith

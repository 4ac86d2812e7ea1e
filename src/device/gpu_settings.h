// GPU settings, made before first use unless the environment has them. Reasons: docs/gpu.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace megalith {

enum class GpuVendor { kNone, kNvidia, kAmd };

// Found without starting the GPU.
struct GpuSettingFacts {
  GpuVendor vendor = GpuVendor::kNone;  // whose GPUs LibTorch drives
  std::vector<std::string> gpu_names;   // from the driver ("NVIDIA H200")
  int tensor_parallel_size = 1;
  bool is_fsdp = false;
  int world_size = 1;
};

enum class GpuSettingKind {
  kVariable,   // of the environment
  kAllocator,  // of LibTorch's allocator, as in PYTORCH_ALLOC_CONF
  kReductions  // accumulation of 16-bit products in 16 bits
};

struct GpuSetting {
  GpuSettingKind kind = GpuSettingKind::kVariable;
  std::string name, value;
  std::vector<std::string> variables;  // that override it
};

// Pure.
std::vector<GpuSetting> wanted_gpu_settings(const GpuSettingFacts& facts);

// Vendor kNone on the CPU.
GpuSettingFacts gpu_setting_facts(DeviceChoice choice, int tensor_parallel_size, bool is_fsdp, int world_size);

struct GpuSettingInForce {
  std::string name, value;
  std::string set_by;  // "megalith" or "the environment"

  bool operator==(const GpuSettingInForce&) const = default;
};

// Process-wide; call before a GPU's first use.
std::vector<GpuSettingInForce> apply_gpu_settings(const std::vector<GpuSetting>& settings);

std::string gpu_settings_text(const std::vector<GpuSettingInForce>& settings);

}  // namespace megalith

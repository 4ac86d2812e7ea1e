// Sources: binary and PTX compatibility in NVIDIA's CUDA C++ programming guide; LLVM's user guide for AMDGPU.
#include "device/gpu_architecture.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/finding.h"
#include "device/machine.h"

// Comma-separated, from src/ops/Kernels.cmake.
#ifndef MEGALITH_GPU_ARCHITECTURES
#define MEGALITH_GPU_ARCHITECTURES ""
#endif

namespace megalith {
namespace {

// CUDA's stable ABI, loaded by LibTorch: no CUDA header needed.
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;

std::string nvidia_architecture(int device) {
  using GetAttribute = int (*)(int* value, int attribute, int device);
  const auto get = reinterpret_cast<GetAttribute>(::dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  int major = 0, minor = 0;
  if (get == nullptr || get(&major, kMajorAttribute, device) != 0 || get(&minor, kMinorAttribute, device) != 0)
    return "";
  return fmt::format("sm_{}{}", major, minor);
}

// Empty if the machine's GPUs differ: the driver lists invisible ones too.
std::string amd_architecture() {
  std::string found;
  for (const GpuFacts::Device& gpu : read_gpus("/").devices) {
    if (gpu.architecture.empty() || (!found.empty() && gpu.architecture != found)) return "";
    found = gpu.architecture;
  }
  return found;
}

// "90a-real": only for chip 90, without PTX.
struct NvidiaTarget {
  int number = 0;               // 10 * major + minor
  bool is_exact = false;        // 90a
  bool has_binary = true;       // not "-virtual"
  bool has_driver_form = true;  // not "-real": PTX for later chips
};

std::optional<NvidiaTarget> nvidia_target(std::string_view text) {
  NvidiaTarget target;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const std::string_view form = text.substr(dash + 1);
    target.has_binary = form != "virtual";
    target.has_driver_form = form != "real";
    text = text.substr(0, dash);
  }
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), target.number);
  if (error != std::errc()) return std::nullopt;
  target.is_exact = rest != text.data() + text.size();
  return target;
}

std::optional<ArchitectureFit> fit_of(const NvidiaTarget& target, int device) {
  const bool runs_binary =
      target.is_exact ? target.number == device : target.number / 10 == device / 10 && target.number <= device;
  if (target.has_binary && runs_binary) return ArchitectureFit::kNative;
  if (target.has_driver_form && !target.is_exact && target.number <= device) return ArchitectureFit::kByDriver;
  return std::nullopt;
}

constexpr std::string_view kNvidia = "sm_";

std::optional<int> nvidia_number(std::string_view architecture) {
  if (!architecture.starts_with(kNvidia)) return std::nullopt;
  const std::optional<NvidiaTarget> target = nvidia_target(architecture.substr(kNvidia.size()));
  if (!target) return std::nullopt;
  return target->number;
}

}  // namespace

std::vector<std::string> built_architectures() {
  std::vector<std::string> all;
  for (std::string_view rest = MEGALITH_GPU_ARCHITECTURES; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    all.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return all;
}

std::string architecture_of(const c10::Device& device) {
  if (device.type() == c10::kHIP) return amd_architecture();
  if (!device.is_cuda()) return "";
  // ROCm builds say cuda as well.
  if (std::string found = nvidia_architecture(device.index()); !found.empty()) return found;
  return amd_architecture();
}

ArchitectureFit check_architecture(std::string_view device, const std::vector<std::string>& built) {
  if (device.empty() || built.empty()) return ArchitectureFit::kNative;
  const std::optional<int> number = nvidia_number(device);
  std::optional<ArchitectureFit> best;
  for (const std::string& text : built) {
    std::optional<ArchitectureFit> fit;
    if (number) {
      const std::optional<NvidiaTarget> target = nvidia_target(text);
      // "all", "native": resolved by the compiler, unknown here.
      if (!target) return ArchitectureFit::kNative;
      fit = fit_of(*target, *number);
    } else if (text.substr(0, text.find(':')) == device) {
      fit = ArchitectureFit::kNative;
    }
    if (fit && (!best || *fit < *best)) best = fit;
  }
  if (best) return *best;
  const char* variable = number ? "CMAKE_CUDA_ARCHITECTURES" : "CMAKE_HIP_ARCHITECTURES";
  throw UserError(fmt::format("this GPU is of architecture {}, and the program's kernels were compiled for {}", device,
                              fmt::join(built, ", ")),
                  fmt::format("build with CMAKE_ARGS=-D{}={}, choose another GPU, or use --device cpu", variable,
                              number ? device.substr(kNvidia.size()) : device));
}

Finding check_kernels(const std::optional<std::string>& device, const std::vector<std::string>& built) {
  Finding finding{"versions", "kernels", FindingLevel::kOk, "none for GPUs are built in", ""};
  if (built.empty()) {
    if (device) {
      finding.level = FindingLevel::kWarning;
      finding.found += ": the references run on this GPU";
      finding.remedy = "build with nvcc or hipcc on the PATH (make), or take a bundle for GPUs";
    }
    return finding;
  }
  std::vector<std::string> names;
  for (const std::string& text : built) {
    names.push_back(text[0] >= '0' && text[0] <= '9' ? std::string(kNvidia) + text : text);
  }
  finding.found = fmt::format("compiled for {}", fmt::join(names, ", "));
  if (!device) return finding;
  if (device->empty()) {
    finding.level = FindingLevel::kNote;
    finding.found += "; the GPU does not say which it is";
    return finding;
  }
  finding.found += fmt::format("; this GPU is {}", *device);
  try {
    if (check_architecture(*device, built) == ArchitectureFit::kByDriver) {
      finding.level = FindingLevel::kWarning;
      finding.found += ", for which the driver compiles them at their first use";
    }
  } catch (const UserError& error) {
    finding.level = FindingLevel::kError;
    finding.found += ", on which none of them runs";
    finding.remedy = error.remedy();
  }
  return finding;
}

bool has_fp8_products(std::string_view architecture) {
  if (const std::optional<int> number = nvidia_number(architecture)) return *number >= 89;
  // From gfx942; gfx12 among workstation chips.
  for (const std::string_view series : {"gfx94", "gfx95", "gfx12"}) {
    if (architecture.starts_with(series)) return true;
  }
  return !architecture.starts_with("gfx");
}

void check_fp8_products(std::string_view architecture, std::string_view fp8_format) {
  if (has_fp8_products(architecture)) return;
  throw UserError(
      fmt::format("fp8_format {} needs a GPU that multiplies numbers of eight bits, and this one ({}) does not",
                  fp8_format, architecture),
      "leave fp8_format out (bf16), or use a GPU of sm_89 or later, of gfx942 or later");
}

}  // namespace megalith

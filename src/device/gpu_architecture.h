// Which GPUs the kernels in this program run on, and what a GPU's chip is.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct Finding;

// What CMAKE_CUDA_ARCHITECTURES or CMAKE_HIP_ARCHITECTURES was when the kernels were compiled: "80", "90a", "100-real";
// "gfx942". Empty: the program holds no kernels of its own, and the references run wherever LibTorch does.
std::vector<std::string> built_architectures();

// "sm_90" or "gfx942"; empty where nobody tells (the pretend accelerator, a machine with AMD's GPUs of several kinds).
std::string architecture_of(const c10::Device& device);

enum class ArchitectureFit {
  kNative,   // code for it is there
  kByDriver  // the driver compiles it from code of an older one, at the first start
};

// UserError, which names both, when nothing of what was built runs on such a chip. Pure, like the next.
//   device  as architecture_of() gives it
ArchitectureFit check_architecture(std::string_view device, const std::vector<std::string>& built);

// For the doctor: what the kernels were compiled for beside what the run's GPU is. Pure.
//   device  as architecture_of() gives it; nothing: the run uses no GPU
Finding check_kernels(const std::optional<std::string>& device, const std::vector<std::string>& built);

// Whether the chip multiplies numbers of eight bits: NVIDIA's from Ada and Hopper (sm_89) on, AMD's from gfx942 on.
// True of what is not known.
bool has_fp8_products(std::string_view architecture);
// UserError, which names both, where it does not.
void check_fp8_products(std::string_view architecture, std::string_view fp8_format);

}  // namespace megalith

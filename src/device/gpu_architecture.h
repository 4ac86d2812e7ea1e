// The GPUs for which this program has kernels, and the chip of a GPU.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct Finding;

// CMAKE_CUDA_ARCHITECTURES or CMAKE_HIP_ARCHITECTURES when the kernels were compiled: "80", "90a", "100-real";
// "gfx942". Empty: no kernels of our own; the references run wherever LibTorch does.
std::vector<std::string> built_architectures();

// "sm_90" or "gfx942"; empty if unknown (the pretend accelerator, a machine with several kinds of AMD GPUs).
std::string architecture_of(const c10::Device& device);

enum class ArchitectureFit {
  kNative,   // code for it is there
  kByDriver  // the driver compiles it from code of an older one, at the first start
};

// UserError that names both if no compiled code runs on the chip. Pure, like the next.
//   device  as from architecture_of()
ArchitectureFit check_architecture(std::string_view device, const std::vector<std::string>& built);

// For the doctor: what the kernels were compiled for against the run's GPU.
//   device  as from architecture_of(); nothing: the run uses no GPU
Finding check_kernels(const std::optional<std::string>& device, const std::vector<std::string>& built);

// True if the chip multiplies eight-bit numbers: NVIDIA's from Ada and Hopper (sm_89) on, AMD's from gfx942 on, and
// unknown ones.
bool has_fp8_products(std::string_view architecture);
// UserError, which names both, otherwise.
void check_fp8_products(std::string_view architecture, std::string_view fp8_format);

}  // namespace megalith

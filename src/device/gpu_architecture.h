// GPU architectures, and which have kernels.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct Finding;

// CMAKE_CUDA_ARCHITECTURES or CMAKE_HIP_ARCHITECTURES of the kernels' build: "80", "90a", "100-real"; "gfx942". Empty:
// the references run instead.
std::vector<std::string> built_architectures();

// "sm_90", "gfx942"; empty if unknown (the tests' accelerator, mixed AMD GPUs).
std::string architecture_of(const c10::Device& device);

enum class ArchitectureFit {
  kNative,   // compiled for it
  kByDriver  // the driver compiles PTX at the first start
};

// UserError naming both if nothing compiled runs on `device`, as from architecture_of(). Pure.
ArchitectureFit check_architecture(std::string_view device, const std::vector<std::string>& built);

// For the doctor. `device` is null if no GPU is used. Pure.
Finding check_kernels(const std::optional<std::string>& device, const std::vector<std::string>& built);

// From Ada and Hopper (sm_89), from gfx942, and unknown chips.
bool has_fp8_products(std::string_view architecture);
// UserError if not.
void check_fp8_products(std::string_view architecture, std::string_view fp8_format);

}  // namespace megalith

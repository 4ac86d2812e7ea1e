// GPUs by name: their memory, and their peak speed, of which a run's speed is reported as a share.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Dense bf16 or fp16 matrix FLOP/s from data sheets (no sparsity); null for other dtypes and chips.
//   name          "NVIDIA H100 80GB HBM3"; may be empty
//   architecture  "gfx942"; may be empty. Decides for AMD, whose names drivers often omit
std::optional<double> known_peak_flops(std::string_view name, std::string_view architecture, at::ScalarType dtype);

// A GPU by its name on data sheets: "MI300X", "h100"; nothing if unknown.
struct KnownGpu {
  std::string name, architecture;
  int64_t memory_bytes;  // as its driver reports it
};
std::optional<KnownGpu> known_gpu(std::string_view name);
// This machine's, if all its GPUs are of one kind.
std::optional<KnownGpu> gpu_of(const c10::Device& device);
// All that known_gpu() knows.
std::vector<std::string> known_gpu_names();

// Nothing for a CPU, whose clock and units are not reliably known.
std::optional<double> peak_flops(const c10::Device& device, at::ScalarType dtype);

}  // namespace megalith

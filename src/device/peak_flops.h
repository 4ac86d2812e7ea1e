// A device's peak speed, of which a run's speed is reported as a share.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace megalith {

// Dense bf16 and fp16 matrix products in floating-point operations per second, from data sheets (without sparsity);
// nothing for other dtypes and chips. Pure.
//   name          from the driver: "NVIDIA H100 80GB HBM3"; may be empty
//   architecture  "gfx942", "sm_90"; may be empty. Decides for AMD's GPUs, whose names drivers often leave out
std::optional<double> known_peak_flops(std::string_view name, std::string_view architecture, at::ScalarType dtype);

// Nothing for a CPU, whose clock and units are not reliably known.
std::optional<double> peak_flops(const c10::Device& device, at::ScalarType dtype);

}  // namespace megalith

// What a device multiplies at most: the speed that a run's is a share of.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace megalith {

// Dense matrix products of bf16 and fp16, in floating-point operations a second, as the makers' data sheets give them
// (without sparsity); nothing for other dtypes and chips. Pure.
//   name          as the driver tells it: "NVIDIA H100 80GB HBM3"; may be empty
//   architecture  "gfx942", "sm_90"; may be empty. It decides for AMD's GPUs, whose names drivers often leave out
std::optional<double> known_peak_flops(std::string_view name, std::string_view architecture, at::ScalarType dtype);

// The peak of this device; nothing for a CPU, whose clock and units nobody tells reliably.
std::optional<double> peak_flops(const c10::Device& device, at::ScalarType dtype);

}  // namespace megalith

// A device's speed in the benchmarks of AMD's guides ("System health benchmarks"): matrix products, memory bandwidth,
// copies. Memory as in BabelStream (copy, mul, add, triad, dot in float64; Deakin et al. 2018), with LibTorch's
// operators.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/finding.h"
#include "verify/collective_check.h"

namespace megalith {

// At least; null if unknown.
struct ExpectedSpeeds {
  std::string kind;  // "MI300X"
  std::optional<double> bf16_tflops, fp32_tflops;
  std::optional<double> copy, scale, add, triad, dot;  // GB/s
  std::optional<double> all_reduce_bus;                // GB/s, eight GPUs of a machine
};

// Null for unknown kinds. Pure.
//   name          the driver's; may be empty
//   architecture  "gfx942"; if the name is unknown
std::optional<ExpectedSpeeds> expected_speeds(std::string_view name, std::string_view architecture);

struct SpeedRow {
  std::string what;  // "memory copy"
  std::string unit;  // "GB/s", "TFLOP/s"
  double measured = 0;
  std::optional<double> expected;
};

// Matrix sides, and float64 elements of a benchmark array.
struct SpeedSizes {
  int64_t bf16_side = 0, fp32_side = 0, array_elements = 0;
};
SpeedSizes speed_sizes(const c10::Device& device);

// Takes some seconds and three arrays. Rates are means over 0.2 s after a warm-up call; bytes count as in BabelStream
// (dot, copy, scale: two arrays; add, triad: three).
//   with_peer  copies to the next GPU, too
std::vector<SpeedRow> measure_speeds(const c10::Device& device, const SpeedSizes& sizes, bool with_peer);

void add_expected(std::vector<SpeedRow>& rows, const ExpectedSpeeds& expected);

// The largest all_reduce; expected speeds are of eight ranks on one machine.
std::optional<SpeedRow> all_reduce_row(std::span<const Bandwidth> bandwidth, int world_size, int local_world_size,
                                       const std::optional<ExpectedSpeeds>& expected);

// Topic "speed", a finding per row; a warning if below the expected.
Findings check_speeds(std::span<const SpeedRow> rows);

// device: "GPU 0, MI300X".
std::string speeds_text(std::span<const SpeedRow> rows, std::string_view device);

}  // namespace megalith

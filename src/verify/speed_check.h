// What a device reaches in the benchmarks of AMD's guides ("System health benchmarks"): matrix products, memory
// bandwidth, copies between host and device; beside what its kind should reach.
//
// The memory benchmark is BabelStream's (copy, mul, add, triad, dot in float64; Deakin et al. 2018, "Evaluating
// attainable memory bandwidth of parallel programming models"), written with LibTorch's operators.
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

// Least values; nothing where nobody has published one and no data sheet helps.
struct ExpectedSpeeds {
  std::string kind;  // "MI300X"
  std::optional<double> bf16_tflops, fp32_tflops;
  std::optional<double> copy, scale, add, triad, dot;  // GB/s
  std::optional<double> all_reduce_bus;                // GB/s, between the eight GPUs of a machine
};

// For the kind of GPU that this is; nothing for another. Pure.
//   name          as the driver tells it; may be empty
//   architecture  "gfx942"; decides where the name says nothing
std::optional<ExpectedSpeeds> expected_speeds(std::string_view name, std::string_view architecture);

struct SpeedRow {
  std::string what;  // "memory copy"
  std::string unit;  // "GB/s", "TFLOP/s"
  double measured = 0;
  std::optional<double> expected;
};

// Sides of the matrices, and float64 elements of an array of the memory benchmark.
struct SpeedSizes {
  int64_t bf16_side = 0, fp32_side = 0, array_elements = 0;
};
SpeedSizes speed_sizes(const c10::Device& device);

// Takes some seconds, and three arrays of the device's memory. Rates are means of about 0.2 s of calls after one that
// is not counted; bytes are counted as BabelStream does (dot, copy and scale two arrays, add and triad three).
//   with_peer  also copies to the next GPU that this process sees
std::vector<SpeedRow> measure_speeds(const c10::Device& device, const SpeedSizes& sizes, bool with_peer);

// Fills in what the kind should reach.
void add_expected(std::vector<SpeedRow>& rows, const ExpectedSpeeds& expected);

// The all_reduce of the largest message as a row: its expected speed is that of eight ranks on one machine.
std::optional<SpeedRow> all_reduce_row(std::span<const Bandwidth> bandwidth, int world_size, int local_world_size,
                                       const std::optional<ExpectedSpeeds>& expected);

// Topic "speed": one finding for each row; a warning for what stays below what the kind should reach.
Findings check_speeds(std::span<const SpeedRow> rows);

// "device" is what the table is of: "GPU 0, MI300X".
std::string speeds_text(std::span<const SpeedRow> rows, std::string_view device);

}  // namespace megalith

#include "verify/speed_check.h"

#include <ATen/Functions.h>
#include <ATen/Generator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/device.h"
#include "device/stream.h"

namespace megalith {
namespace {

// add_expected() finds rows by these.
constexpr const char* kBf16Product = "matrix product bf16";
constexpr const char* kFp32Product = "matrix product fp32";
constexpr const char* kStreamNames[] = {"memory copy", "memory scale", "memory add", "memory triad", "memory dot"};

// Mean over a fifth of a second.
double seconds_of_call(const c10::Device& device, const std::function<void()>& call) {
  constexpr double kEnough_s = 0.2, kMostCalls = 500;
  call();
  synchronize(device);
  const Stopwatch first;
  call();
  synchronize(device);
  const double once = std::max(first.elapsed_s(), 1e-9);
  const auto times = static_cast<int64_t>(std::clamp(kEnough_s / once, 1.0, kMostCalls));
  const Stopwatch watch;
  for (int64_t i = 0; i < times; ++i) call();
  synchronize(device);
  return std::max(watch.elapsed_s() / static_cast<double>(times), 1e-9);
}

SpeedRow product_row(const c10::Device& device, const char* what, at::ScalarType dtype, int64_t side) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  // Zeros take less power, and would run faster.
  const at::Tensor a = at::randn({side, side}, options), b = at::randn({side, side}, options);
  at::Tensor c = at::empty({side, side}, options);
  const double seconds = seconds_of_call(device, [&] { at::mm_out(c, a, b); });
  const auto edge = static_cast<double>(side);
  return {
      fmt::format("{}, {} x {} x {}", what, side, side, side), "TFLOP/s", 2 * edge * edge * edge / seconds / 1e12, {}};
}

void add_memory_rows(const c10::Device& device, int64_t elements, std::vector<SpeedRow>& rows) {
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
  at::Tensor a = at::full({elements}, 0.1, options), b = at::full({elements}, 0.2, options);
  at::Tensor c = at::zeros({elements}, options);
  const double scalar = 0.4;
  const std::function<void()> calls[] = {
      [&] { c.copy_(a); },           [&] { at::mul_out(b, c, at::scalar_tensor(scalar, at::kDouble)); },
      [&] { at::add_out(c, a, b); }, [&] { at::add_out(a, b, c, scalar); },
      [&] { at::dot(a, b); },
  };
  constexpr double kArrays[] = {2, 2, 3, 3, 2};
  const double bytes = static_cast<double>(elements) * sizeof(double);
  for (size_t i = 0; i < std::size(calls); ++i) {
    rows.push_back({kStreamNames[i], "GB/s", kArrays[i] * bytes / seconds_of_call(device, calls[i]) / 1e9, {}});
  }
}

void add_copy_rows(const c10::Device& device, int64_t elements, bool with_peer, std::vector<SpeedRow>& rows) {
  const auto on_device = at::TensorOptions().dtype(at::kDouble).device(device);
  at::Tensor here = at::zeros({elements}, on_device);
  at::Tensor host = at::zeros({elements}, at::TensorOptions().dtype(at::kDouble)).pin_memory();
  const double bytes = static_cast<double>(elements) * sizeof(double);
  const auto add = [&](std::string what, const std::function<void()>& call) {
    rows.push_back({std::move(what), "GB/s", bytes / seconds_of_call(device, call) / 1e9, {}});
  };
  add("copy host to device", [&] { here.copy_(host, /*non_blocking=*/true); });
  add("copy device to host", [&] { host.copy_(here, /*non_blocking=*/true); });
  if (!with_peer || accelerator_count() < 2) return;
  const c10::Device next(device.type(), narrow<c10::DeviceIndex>((device.index() + 1) % accelerator_count()));
  at::Tensor there = at::zeros({elements}, on_device.device(next));
  add(fmt::format("copy device {} to {}", device.index(), next.index()), [&] {
    there.copy_(here, /*non_blocking=*/true);
    synchronize(next);
  });
}

}  // namespace

SpeedSizes speed_sizes(const c10::Device& device) {
  // BabelStream's default; AMD's acceptance size in fp32. A CPU's cache may hold an array.
  if (!device.is_cpu()) return {.bf16_side = 8192, .fp32_side = 4000, .array_elements = int64_t{1} << 25};
  return {.bf16_side = 1024, .fp32_side = 1024, .array_elements = int64_t{1} << 24};
}

std::vector<SpeedRow> measure_speeds(const c10::Device& device, const SpeedSizes& sizes, bool with_peer) {
  const at::NoGradGuard no_grad;
  std::vector<SpeedRow> rows;
  rows.push_back(product_row(device, kBf16Product, at::kBFloat16, sizes.bf16_side));
  rows.push_back(product_row(device, kFp32Product, at::kFloat, sizes.fp32_side));
  add_memory_rows(device, sizes.array_elements, rows);
  if (!device.is_cpu()) add_copy_rows(device, sizes.array_elements, with_peer, rows);
  return rows;
}

void add_expected(std::vector<SpeedRow>& rows, const ExpectedSpeeds& expected) {
  const std::optional<double> of_streams[] = {expected.copy, expected.scale, expected.add, expected.triad,
                                              expected.dot};
  for (SpeedRow& row : rows) {
    if (row.what.starts_with(kBf16Product)) row.expected = expected.bf16_tflops;
    if (row.what.starts_with(kFp32Product)) row.expected = expected.fp32_tflops;
    for (size_t i = 0; i < std::size(of_streams); ++i) {
      if (row.what == kStreamNames[i]) row.expected = of_streams[i];
    }
  }
}

std::optional<SpeedRow> all_reduce_row(std::span<const Bandwidth> bandwidth, int world_size, int local_world_size,
                                       const std::optional<ExpectedSpeeds>& expected) {
  const Bandwidth* largest = nullptr;
  for (const Bandwidth& one : bandwidth) {
    if (one.kind != CollectiveKind::kAllReduce) continue;
    if (largest == nullptr || one.bytes > largest->bytes) largest = &one;
  }
  if (largest == nullptr || world_size < 2) return std::nullopt;
  SpeedRow row{fmt::format("all_reduce of {}, {} ranks, bus", format_bytes(largest->bytes), world_size), "GB/s",
               largest->bus_bytes_per_s / 1e9, std::nullopt};
  // Smaller messages, fewer links: slower.
  constexpr int64_t kLargeMessage = int64_t{1} << 30;
  const bool is_comparable = world_size == 8 && local_world_size == 8 && largest->bytes >= kLargeMessage;
  if (expected && is_comparable) row.expected = expected->all_reduce_bus;
  return row;
}

Findings check_speeds(std::span<const SpeedRow> rows) {
  Findings all;
  for (const SpeedRow& row : rows) {
    Finding finding{"speed", row.what, FindingLevel::kOk, fmt::format("{:.4g} {}", row.measured, row.unit), ""};
    if (row.expected) finding.found += fmt::format("; such a GPU should reach {:.4g}", *row.expected);
    if (row.expected && row.measured < *row.expected) {
      finding.level = FindingLevel::kWarning;
      finding.remedy =
          "see who else uses the GPU, its clocks and its power limit (rocm-smi, nvidia-smi), and measure again";
    }
    all.push_back(std::move(finding));
  }
  return all;
}

std::string speeds_text(std::span<const SpeedRow> rows, std::string_view device) {
  std::string text =
      fmt::format("{:<44} {:>8} {:>10} {:>13}   ({})\n", "benchmark", "", "measured", "should reach", device);
  for (const SpeedRow& row : rows) {
    text += fmt::format("{:<44} {:>8} {:>10} {:>13}\n", row.what, row.unit, fmt::format("{:.4g}", row.measured),
                        row.expected ? fmt::format("{:.4g}", *row.expected) : "-");
  }
  return text;
}

}  // namespace megalith

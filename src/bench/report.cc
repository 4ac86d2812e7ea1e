#include "bench/report.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "device/device.h"

namespace megalith {
namespace {

// 0.00123, 0.123, 12.3, 1234
std::string short_number(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  const int digits_before = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - digits_before, 0, 8));
}

// Display width: × and – take one column each.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width, bool is_left) {
  const std::string blanks(width - std::min(width, width_of(text)), ' ');
  return is_left ? text + blanks : blanks + text;
}

std::string table_of(const std::vector<BenchRow>& rows) {
  if (rows.empty()) return "";
  std::vector<size_t> shown, widths;  // cells with a title
  for (size_t i = 0; i < rows[0].size(); ++i) {
    if (rows[0][i].title.empty()) continue;
    size_t width = width_of(rows[0][i].title);
    for (const BenchRow& row : rows) width = std::max(width, width_of(row[i].text));
    shown.push_back(i);
    widths.push_back(width);
  }
  const auto line = [&](const BenchRow& row, std::string BenchCell::*text) {
    std::string result;
    for (size_t k = 0; k < shown.size(); ++k) {
      const BenchCell& cell = row[shown[k]];
      result += (k == 0 ? "" : "  ") + padded(cell.*text, widths[k], std::holds_alternative<std::string>(cell.value));
    }
    return result.substr(0, result.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text = line(rows[0], &BenchCell::title);
  for (const BenchRow& row : rows) text += line(row, &BenchCell::text);
  return text;
}

std::string json_line(const BenchReport& report, const BenchRow& row) {
  OrderedJson object{{"benchmark", report.benchmark}};
  for (const BenchCell& cell : row) {
    if (cell.text.empty()) continue;
    std::visit([&](const auto& value) { object[cell.key] = value; }, cell.value);
  }
  object["dtype"] = short_dtype_name(report.dtype);
  object["device"] = describe_device(report.device);
  object["num_threads"] = at::get_num_threads();
  object["torch"] = TORCH_VERSION;
  return dump_json(object) + "\n";
}

}  // namespace

BenchCell text_cell(std::string key, std::string title, std::string value) {
  std::string text = value;
  return {std::move(key), std::move(title), std::move(value), std::move(text)};
}

BenchCell number_cell(std::string key, std::string title, double value) {
  return {std::move(key), std::move(title), value, short_number(value)};
}

BenchRow measured_row(const BenchMeasurement& measurement, size_t variant) {
  const BenchCase& measured = *measurement.bench_case;
  const BenchTime& time = measurement.times[variant];
  BenchRow row{text_cell("name", "name", measured.name), text_cell("shape", "shape", measured.shape),
               text_cell("pass", "pass", measured.pass),
               text_cell("kernels", "kernels", measured.variants[variant].name), number_cell("ms", "ms", time.ms)};
  BenchCell low = number_cell("ms_p10", "p10", time.ms_p10), high = number_cell("ms_p90", "p90", time.ms_p90);
  row.push_back(std::move(low));
  row.push_back(std::move(high));
  const auto rate = [&](const char* key, const char* title, double amount, double unit) {
    BenchCell cell = number_cell(key, title, amount / (time.ms * 1e-3) / unit);
    if (amount == 0) cell.text.clear();
    row.push_back(std::move(cell));
  };
  rate("tflops", "TFLOP/s", measured.flops, 1e12);
  rate("gb_per_s", "GB/s", measured.bytes, 1e9);
  return row;
}

BenchCell ratio_cell(const BenchMeasurement& measurement, size_t variant, std::string_view against) {
  const std::vector<BenchVariant>& variants = measurement.bench_case->variants;
  const auto base = std::find_if(variants.begin(), variants.end(), [&](const auto& v) { return v.name == against; });
  MEGALITH_CHECK(base != variants.end(), "{} has no variant {}", measurement.bench_case->name, against);
  const double base_ms = measurement.times[static_cast<size_t>(base - variants.begin())].ms;
  return number_cell("ratio", fmt::format("against {}", against), base_ms / measurement.times[variant].ms);
}

void write_bench_report(const BenchReport& report, const BenchOptions& options) {
  std::string lines;
  for (const BenchRow& row : report.rows) lines += json_line(report, row);
  if (options.output_file) write_file_atomic(*options.output_file, lines);
  if (options.json) {
    fmt::print("{}", lines);
    return;
  }
  const int threads = at::get_num_threads();
  fmt::print("megalith bench {}: {}, {} thread{}, {}, torch {}\n", report.benchmark, describe_device(report.device),
             threads, threads == 1 ? "" : "s", short_dtype_name(report.dtype), TORCH_VERSION);
  for (const std::string& line : report.explanations) fmt::print("{}\n", line);
  fmt::print("\n{}", table_of(report.rows));
}

std::string short_dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

std::string how_measured(const BenchOptions& options) {
  return fmt::format(
      "ms: median of {} rounds after {} to warm up, with the 10th and 90th percentile; the variants run in turn, on "
      "random\ninputs of which there are enough to fill twice the last-level cache (at most 64 sets), so that none is "
      "hot",
      options.iterations, options.warmup);
}

}  // namespace megalith

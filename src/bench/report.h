// A benchmark's output: a table for people, or one JSON object per row for machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bench/measure.h"
#include "bench/options.h"
#include "train/config.h"

namespace megalith {

// One value of a row. Without a title it is only in the JSON.
struct BenchCell {
  std::string key;    // of the JSON object
  std::string title;  // of the column, with the unit
  std::variant<std::string, double, int64_t> value;
  std::string text;  // in the table; "" if unknown, which leaves it out of the JSON
};
using BenchRow = std::vector<BenchCell>;

BenchCell text_cell(std::string key, std::string title, std::string value);
// Shown with three or four significant digits.
BenchCell number_cell(std::string key, std::string title, double value);

// name, shape, pass, kernels and times; TFLOP/s and GB/s if the case has operations and bytes.
BenchRow measured_row(const BenchMeasurement& measurement, size_t variant);
// The speed relative to the case's variant `against`.
BenchCell ratio_cell(const BenchMeasurement& measurement, size_t variant, std::string_view against);

struct BenchReport {
  std::string benchmark;  // "gemm"
  at::Device device;
  at::ScalarType dtype;
  std::vector<std::string> explanations;  // lines above the table: how it was measured and counted
  std::vector<BenchRow> rows;             // all with the same titles
};

// Prints the table, or with --json the rows; writes --output_file.
void write_bench_report(const BenchReport& report, const BenchOptions& options);

// "bf16"
std::string short_dtype_name(at::ScalarType dtype);
// The line of `explanations` on how operators are measured.
std::string how_measured(const BenchOptions& options);

}  // namespace megalith

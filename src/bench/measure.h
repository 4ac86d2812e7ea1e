// Timing of operators: variants of one computation in turn, on uncached data.
//
// A round runs every variant once, starting with another each time. A sample repeats calls for a millisecond or more,
// each with the next set of inputs: together the sets (at most 64) are twice the size of the last-level cache. Results
// come from the allocator, possibly in cached memory, as in training. The device is synchronised before the clock is
// read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "core/log.h"
#include "ops/kernels.h"

namespace megalith {

// Random tensors on a device. Numbers repeat after a quarter of a million: drawing all would take longer than
// measuring.
class BenchTensors {
 public:
  BenchTensors(at::ScalarType dtype, at::Device device);

  at::ScalarType dtype() const { return dtype_; }
  // fp32, as for statistics, weight gradients and master weights.
  at::ScalarType wide_dtype() const { return at::kFloat; }
  int64_t element_bytes() const { return static_cast<int64_t>(c10::elementSize(dtype_)); }

  // Normally distributed with this standard deviation.
  at::Tensor normal(at::IntArrayRef shape, double std = 1) const { return normal(shape, std, dtype_); }
  at::Tensor wide_normal(at::IntArrayRef shape, double std = 1) const { return normal(shape, std, wide_dtype()); }
  // Uniform int64 in [0, end).
  at::Tensor ids(at::IntArrayRef shape, int64_t end) const;
  at::Tensor arange(int64_t end) const;                        // int64
  at::Tensor full(at::IntArrayRef shape, double value) const;  // fp32

 private:
  at::Tensor normal(at::IntArrayRef shape, double std, at::ScalarType dtype) const;

  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor block_;  // fp32
};

using BenchInputs = std::vector<at::Tensor>;

struct BenchVariant {
  std::string name;  // "fused", "reference", "sdpa"
  std::function<void(const BenchInputs&)> run;
};

struct BenchCase {
  std::string name;   // of the operator or layer
  std::string shape;  // "2048x768"
  std::string pass;   // "forward", "backward", …
  double flops = 0;   // additions and multiplications that the result needs
  double bytes = 0;   // of an ideal pass: every input read once, every result written once
  std::function<BenchInputs()> make_inputs;
  std::vector<BenchVariant> variants;
  double workspace_bytes = 0;  // peak memory of a variant besides inputs and results
};

std::vector<BenchVariant> both_kernels(std::function<void(const BenchInputs&, Kernels)> run);

// Milliseconds per call: the median of the samples and their 10th and 90th percentiles.
struct BenchTime {
  double ms = 0, ms_p10 = 0, ms_p90 = 0;
};

// Interpolates between nearest ranks. values must not be empty.
double percentile(std::vector<double> values, double fraction);
BenchTime summarise_times(const std::vector<double>& samples_ms);

struct BenchMeasurement {
  const BenchCase* bench_case = nullptr;
  std::vector<BenchTime> times;  // of its variants
};

// Measures the cases in turn, with a progress line; they must outlive the result. UserErrors, before measuring, if a
// case does not fit into the device's memory.
//   sample_ms  at least; where processes take turns on a processor, several turns
std::vector<BenchMeasurement> measure_cases(const std::vector<BenchCase>& cases, const std::string& title,
                                            at::Device device, int64_t iterations, int64_t warmup, Logger& log,
                                            double sample_ms = 1);

}  // namespace megalith

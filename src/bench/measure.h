// Timing of operators: several variants of one computation, in turn, on data that is not in a cache.
//
// A round runs every variant once; each round begins with another one, so that none always follows the same. A sample
// repeats calls until it lasts about a millisecond, and every call of it takes the next set of inputs: there are so
// many sets that together they are twice the size of the last-level cache (at most 64). Results come from the
// allocator, which may hand out memory that is still in a cache, as it does in training. The device is synchronised
// before the clock is read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "core/log.h"
#include "ops/kernels.h"

namespace megalith {

// Random tensors on a device. The numbers repeat after a quarter of a million: drawing them all would take longer than
// measuring.
class BenchTensors {
 public:
  BenchTensors(at::ScalarType dtype, at::Device device);

  at::ScalarType dtype() const { return dtype_; }
  // fp32: what statistics, weight gradients and master weights are kept in
  at::ScalarType wide_dtype() const { return at::kFloat; }
  int64_t element_bytes() const { return static_cast<int64_t>(c10::elementSize(dtype_)); }

  // Normally distributed with this standard deviation.
  at::Tensor normal(at::IntArrayRef shape, double std = 1) const { return normal(shape, std, dtype_); }
  at::Tensor wide_normal(at::IntArrayRef shape, double std = 1) const { return normal(shape, std, wide_dtype()); }
  // Evenly distributed int64 in [0, end).
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

// One computation to be measured.
struct BenchCase {
  std::string name;   // of the operator or layer
  std::string shape;  // "2048x768"
  std::string pass;   // "forward", "backward", …
  double flops = 0;   // additions and multiplications that the result needs
  double bytes = 0;   // read and written by an ideal pass: every input once, every result once
  std::function<BenchInputs()> make_inputs;
  std::vector<BenchVariant> variants;
  double workspace_bytes = 0;  // what the greediest variant holds beside inputs and results
};

// The variants "fused" and "reference" of an operator.
std::vector<BenchVariant> both_kernels(std::function<void(const BenchInputs&, Kernels)> run);

// Milliseconds of a call: the median of the samples and their 10th and 90th percentiles.
struct BenchTime {
  double ms = 0, ms_p10 = 0, ms_p90 = 0;
};

// Nearest ranks are interpolated. values must not be empty.
double percentile(std::vector<double> values, double fraction);
BenchTime summarise_times(const std::vector<double>& samples_ms);

struct BenchMeasurement {
  const BenchCase* bench_case = nullptr;
  std::vector<BenchTime> times;  // of its variants
};

// Measures the cases one after the other, with a progress line; they outlive the result. Throws UserErrors when a case
// does not fit into the device's memory, before anything is measured.
std::vector<BenchMeasurement> measure_cases(const std::vector<BenchCase>& cases, const std::string& title,
                                            at::Device device, int64_t iterations, int64_t warmup, Logger& log);

}  // namespace megalith

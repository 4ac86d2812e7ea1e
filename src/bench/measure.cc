#include "bench/measure.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "config/resolve.h"
#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/memory.h"
#include "device/stream.h"

namespace megalith {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 18;
constexpr int64_t kMostInputSets = 64;
constexpr double kMostRepeats = 64;  // in a millisecond

// The largest cache. Accelerators do not report theirs; today's have up to 256 MiB.
int64_t last_level_cache_bytes(const at::Device& device) {
  constexpr int64_t kAcceleratorCache = int64_t{256} << 20;
  constexpr int64_t kUnknownCache = int64_t{64} << 20;
  if (!device.is_cpu()) return kAcceleratorCache;
  int64_t bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  bytes = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
  return bytes > 0 ? bytes : kUnknownCache;
}

int64_t bytes_of(const BenchInputs& inputs) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : inputs) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// One case: its sets of inputs, and the position in them.
class CaseRunner {
 public:
  CaseRunner(const BenchCase& bench_case, at::Device device, double sample_ms)
      : case_(bench_case), device_(device), sample_ms_(sample_ms) {
    sets_.push_back(case_.make_inputs());
    const int64_t wanted = 2 * last_level_cache_bytes(device);
    const int64_t count = std::min(div_up(wanted, std::max<int64_t>(bytes_of(sets_[0]), 1)), kMostInputSets);
    while (static_cast<int64_t>(sets_.size()) < count) sets_.push_back(case_.make_inputs());
    repeats_.assign(case_.variants.size(), 1);
  }

  // Milliseconds per call.
  double sample(size_t variant) {
    const int64_t repeats = repeats_[variant];
    synchronize(device_);
    const Stopwatch watch;
    for (int64_t i = 0; i < repeats; ++i) {
      case_.variants[variant].run(sets_[next_]);
      next_ = (next_ + 1) % sets_.size();
    }
    synchronize(device_);
    return watch.elapsed_ms() / static_cast<double>(repeats);
  }

  void warm_up(size_t variant) {
    const double ms = sample(variant);
    const double wanted = std::ceil(std::min(sample_ms_ / std::max(ms, 1e-6), kMostRepeats * sample_ms_));
    repeats_[variant] = std::max(repeats_[variant], static_cast<int64_t>(wanted));
  }

 private:
  const BenchCase& case_;
  at::Device device_;
  double sample_ms_;
  std::vector<BenchInputs> sets_;
  size_t next_ = 0;
  std::vector<int64_t> repeats_;  // of each variant
};

void check_memory(const std::vector<BenchCase>& cases, const at::Device& device) {
  const auto total = static_cast<double>(memory_stats(device).total_bytes);
  std::vector<UserError> errors;
  for (const BenchCase& bench_case : cases) {
    const double needed = bench_case.bytes + bench_case.workspace_bytes;
    if (total == 0 || needed <= total) continue;
    errors.emplace_back(fmt::format("{} {} of {} needs {:.3g} GB, but the device has {:.3g} GB", bench_case.name,
                                    bench_case.pass, bench_case.shape, needed / 1e9, total / 1e9),
                        "use smaller shapes");
  }
  throw_if_any(errors);
}

}  // namespace

BenchTensors::BenchTensors(at::ScalarType dtype, at::Device device)
    : dtype_(dtype), device_(device), block_(at::randn({kBlockElements}, at::TensorOptions().dtype(at::kFloat))) {
  block_ = block_.to(device);
}

at::Tensor BenchTensors::normal(at::IntArrayRef shape, double std, at::ScalarType dtype) const {
  const at::Tensor result = at::empty(shape, at::TensorOptions(device_).dtype(dtype));
  const at::Tensor flat = result.view(-1), scaled = (block_ * std).to(dtype);
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlockElements) {
    const int64_t length = std::min(kBlockElements, flat.numel() - begin);
    flat.narrow(0, begin, length).copy_(scaled.narrow(0, 0, length));
  }
  return result;
}

at::Tensor BenchTensors::ids(at::IntArrayRef shape, int64_t end) const {
  return at::randint(end, shape, at::TensorOptions().dtype(at::kLong)).to(device_);
}

at::Tensor BenchTensors::arange(int64_t end) const {
  return at::arange(end, at::TensorOptions(device_).dtype(at::kLong));
}

at::Tensor BenchTensors::full(at::IntArrayRef shape, double value) const {
  return at::full(shape, value, at::TensorOptions(device_).dtype(at::kFloat));
}

std::vector<BenchVariant> both_kernels(std::function<void(const BenchInputs&, Kernels)> run) {
  return {{"fused", [run](const BenchInputs& inputs) { run(inputs, Kernels::kFused); }},
          {"reference", [run](const BenchInputs& inputs) { run(inputs, Kernels::kReference); }}};
}

double percentile(std::vector<double> values, double fraction) {
  MEGALITH_CHECK(!values.empty(), "a percentile of nothing");
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

BenchTime summarise_times(const std::vector<double>& samples_ms) {
  return {percentile(samples_ms, 0.5), percentile(samples_ms, 0.1), percentile(samples_ms, 0.9)};
}

std::vector<BenchMeasurement> measure_cases(const std::vector<BenchCase>& cases, const std::string& title,
                                            at::Device device, int64_t iterations, int64_t warmup, Logger& log,
                                            double sample_ms) {
  check_memory(cases, device);
  at::NoGradGuard no_grad;
  Progress progress(log, title, static_cast<int64_t>(cases.size()) * (warmup + iterations), "rounds");
  std::vector<BenchMeasurement> measurements;
  for (const BenchCase& bench_case : cases) {
    CaseRunner runner(bench_case, device, sample_ms);
    const size_t count = bench_case.variants.size();
    std::vector<std::vector<double>> samples(count);
    for (int64_t round = 0; round < warmup + iterations; ++round) {
      for (size_t i = 0; i < count; ++i) {
        const size_t variant = (static_cast<size_t>(round) + i) % count;
        if (round < warmup)
          runner.warm_up(variant);
        else
          samples[variant].push_back(runner.sample(variant));
      }
      progress.advance();
    }
    BenchMeasurement measurement{&bench_case, {}};
    for (const std::vector<double>& of_variant : samples) measurement.times.push_back(summarise_times(of_variant));
    measurements.push_back(std::move(measurement));
  }
  progress.finish();
  return measurements;
}

}  // namespace megalith

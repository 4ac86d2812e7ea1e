// megalith bench calibrate: rates of this machine for `megalith plan --cluster FILE.yaml:RANKS`.
//
// Products, attention and memory-bound operators are those of bench ops at the configuration's sizes; under a launcher
// every rank measures at once, as in training, and collectives give the link.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "bench/bench.h"
#include "bench/cases.h"
#include "bench/report.h"
#include "cli/print.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/file.h"
#include "core/time.h"
#include "device/memory.h"
#include "ops/swiglu/swiglu.h"
#include "planner/cluster.h"
#include "verify/collective_check.h"

namespace megalith {
namespace {

struct CalibrateOptions : BenchOptions {
  std::string chip_name = "here";

  CalibrateOptions() {
    iterations = 5;
    warmup = 1;
  }
  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field("chip_name", chip_name, "The chip's name in the file.");
  }
};

enum class Rate { kProducts, kAttention, kMemory };
struct RatedCase {
  std::string_view name;  // of a case of bench ops
  Rate rate;
};
constexpr RatedCase kRated[] = {
    {"linear", Rate::kProducts}, {"linear_cross_entropy", Rate::kProducts}, {"attention", Rate::kAttention},
    {"rms_norm", Rate::kMemory}, {"add_rms_norm", Rate::kMemory},           {"rotary", Rate::kMemory},
    {"swiglu", Rate::kMemory},   {"adamw", Rate::kMemory},
};

const RatedCase* rated(const std::string& name) {
  const auto* found = std::ranges::find(kRated, std::string_view(name), &RatedCase::name);
  return found == std::end(kRated) ? nullptr : found;
}

// FLOP/s of products and attention, bytes/s of memory: work of all cases over their time.
std::array<double, 3> measure_rates(CommandContext& context, const Session& session, const CalibrateOptions& options) {
  const BenchTensors tensors(session.resolved->derived.dtype, session.device);
  std::vector<BenchCase> cases = operator_cases(operator_shape(*session.resolved), tensors);
  std::erase_if(cases, [](const BenchCase& one) { return rated(one.name) == nullptr; });
  for (BenchCase& one : cases) one.variants.resize(1);  // fused
  session.groups.world->barrier("calibrate").wait();
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench calibrate", session.device, options.iterations, options.warmup, context.log);
  std::array<double, 3> work{}, seconds{}, rates{};
  for (const BenchMeasurement& one : measured) {
    const auto rate = static_cast<size_t>(rated(one.bench_case->name)->rate);
    work[rate] += rate == static_cast<size_t>(Rate::kMemory) ? one.bench_case->bytes : one.bench_case->flops;
    seconds[rate] += one.times[0].ms / 1e3;
  }
  Group& world = *session.groups.world;
  for (size_t rate = 0; rate < rates.size(); ++rate) {
    rates[rate] = world.reduced(work[rate] / seconds[rate], ReduceOp::kSum, "rate") / world.size();
  }
  return rates;
}

// The host's part of an operator.
double measure_operator_us(const Session& session) {
  constexpr int kCalls = 2000;
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({1, 2}, at::TensorOptions(session.device));
  ops::swiglu(x);
  const Stopwatch watch;
  for (int i = 0; i < kCalls; ++i) ops::swiglu(x);
  return watch.elapsed_ms() * 1e3 / kCalls;
}

ChipRates measure_chip(CommandContext& context, const Session& session, const CalibrateOptions& options, int local) {
  const std::array<double, 3> rates = measure_rates(context, session, options);
  constexpr double kGib = 1024.0 * 1024 * 1024;
  ChipRates chip;
  chip.name = options.chip_name;
  chip.tflops = rates[0] / 1e12;
  chip.attention_share = chip.attention_backward_share = rates[1] / rates[0];
  chip.memory_tb_per_s = rates[2] / 1e12;
  chip.product_share = chip.fp8_share = chip.memory_share = 1;
  const int ranks = session.device.is_cpu() ? std::max(local, 1) : 1;
  chip.memory_gib = static_cast<double>(memory_stats(session.device).total_bytes) / ranks / kGib;
  chip.gpus_per_node = std::max(local, 1);
  chip.operator_us = session.device.is_cpu() ? 0 : measure_operator_us(session);
  chip.link_gb_per_s = chip.network_gb_per_s = chip.memory_tb_per_s * 1e3;
  Group& world = *session.groups.world;
  if (world.size() > 1) {
    constexpr int64_t kSizes[] = {int64_t{1} << 10, int64_t{16} << 20};
    for (const Bandwidth& row : measure_collectives(world, kSizes)) {
      if (row.kind != CollectiveKind::kAllReduce) continue;
      if (row.bytes > kSizes[0] * 2) chip.link_gb_per_s = chip.network_gb_per_s = row.bus_bytes_per_s / 1e9;
      if (row.bytes <= kSizes[0] * 2) chip.link_us = 1e6 * row.seconds / (2 * std::log2(world.size()));
    }
  }
  chip.sources = {fmt::format("megalith bench calibrate: {} rank{} at once", world.size(), world.size() == 1 ? "" : "s"),
                  how_measured(options)};
  return chip;
}

}  // namespace

CommandOptions bench_calibrate_options() { return options_of<CalibrateOptions, Config>("bench calibrate"); }

int bench_calibrate(CommandContext& context) {
  const Launch launch = discover_launch(context.environment);
  CalibrateOptions options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options, launch.world_size);
  if (resolved->wants_help) {
    return print_bench_help(context, *resolved, "megalith bench calibrate [--config FILE] [--output_file FILE.yaml]");
  }
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const std::string text = chip_yaml(measure_chip(context, session, options, launch.local_world_size));
    if (session.groups.world->is_first()) {
      print_out("{}", text);
      if (options.output_file) write_file_atomic(*options.output_file, text);
    }
    session.finish();
    return kExitSuccess;
  });
}

}  // namespace megalith

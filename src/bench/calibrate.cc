// megalith bench calibrate: rates of this machine for `megalith plan --cluster FILE.yaml:RANKS`.
//
// Products, attention and memory-bound operators are those of bench ops, at a rank's sizes in the configured layout.
// Under a launcher every rank measures at once, as in training, and collectives of the layout's ranks give the link.
// Plan as many ranks as calibrated: where they share processors, their turns are in the rates.
#include <ATen/Parallel.h>

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
#include "device/threads.h"
#include "ops/linear/linear.h"
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

enum class Rate { kProducts, kAttention, kAttentionBackward, kMemory };
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

// A rank's sizes in the configuration's layout.
OperatorShape local_shape(const Resolved& run) {
  OperatorShape shape = operator_shape(run);
  const ParallelOptions& parallel = run.config.parallel;
  const int64_t tp = parallel.tensor_model_parallel_size;
  shape.s /= parallel.context_parallel_size;
  for (int64_t* side : {&shape.f, &shape.v, &shape.n, &shape.g}) *side = std::max<int64_t>(*side / tp, 1);
  return shape;
}

// Ranks that take turns on a processor.
double ranks_per_core(const Session& session, int local) {
  if (!session.device.is_cpu()) return 1;
  const ProcessorShare share = processor_share(at::get_num_threads(), std::max(local, 1));
  const double processors = share.quota > 0 ? std::min<double>(share.quota, share.processors) : share.processors;
  return std::max(1.0, share.ranks * share.threads / processors);
}

// FLOP/s of products and attention, bytes/s of memory: work of all cases over their time.
std::array<double, 4> measure_rates(CommandContext& context, const Session& session, const CalibrateOptions& options,
                                    double turns) {
  // A turn is a few milliseconds (CFS, EEVDF).
  constexpr double kSeveralTurns_ms = 20;
  const BenchTensors tensors(session.resolved->derived.dtype, session.device);
  std::vector<BenchCase> cases = operator_cases(local_shape(*session.resolved), tensors);
  std::erase_if(cases, [](const BenchCase& one) { return rated(one.name) == nullptr; });
  for (BenchCase& one : cases) one.variants.resize(1);  // fused
  session.groups.world->barrier("calibrate").wait();
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench calibrate", session.device, options.iterations, options.warmup, context.log,
                    turns > 1 ? turns * kSeveralTurns_ms : 1);
  std::array<double, 4> work{}, seconds{}, rates{};
  for (const BenchMeasurement& one : measured) {
    Rate of_case = rated(one.bench_case->name)->rate;
    if (of_case == Rate::kAttention && one.bench_case->pass == "backward") of_case = Rate::kAttentionBackward;
    const auto rate = static_cast<size_t>(of_case);
    work[rate] += of_case == Rate::kMemory ? one.bench_case->bytes : one.bench_case->flops;
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

// The ranks that the layout's layers wait for, or that share its data.
Group& waiting_ranks(const Groups& groups) {
  for (const Groups::Pointer& group : {groups.tp, groups.cp, groups.dp_cp, groups.pp}) {
    if (group->size() > 1) return *group;
  }
  return *groups.world;
}

// Rates for activations and a bucket of gradients. On the CPU they are measured between products, as in a step: in a
// loop of their own, collectives find all ranks awake.
void measure_links(const Session& session, double turns, ChipRates& chip) {
  Group& group = waiting_ranks(session.groups);
  if (group.size() < 2) return;
  constexpr int64_t kBucketBytes = int64_t{16} << 20;
  const OperatorShape shape = local_shape(*session.resolved);
  const BenchTensors tensors(session.resolved->derived.dtype, session.device);
  const int64_t activation_bytes = shape.b * shape.s * shape.h * tensors.element_bytes();
  const int64_t sizes[] = {std::min(activation_bytes, kBucketBytes / 4), kBucketBytes};
  CollectiveTiming timing{.kinds = {CollectiveKind::kAllGather, CollectiveKind::kSendReceive,
                                    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}};
  if (session.device.is_cpu()) {
    const at::Tensor x = tensors.normal({shape.b * shape.s, shape.h}), w = tensors.normal({shape.f, shape.h});
    timing.work = [x, w] { ops::linear_forward(x, w); };
    timing.enough_s = 0.25 * turns;
  }
  const std::vector<Bandwidth> rows = measure_collectives(group, sizes, timing);
  const auto row = [&](CollectiveKind kind, int64_t bytes) {
    return *std::ranges::find_if(rows, [&](const Bandwidth& one) { return one.kind == kind && one.bytes >= bytes; });
  };
  const auto rate = [&](CollectiveKind kind) { return row(kind, sizes[1]).bus_bytes_per_s / 1e9; };
  const bool is_neighbours = &group == session.groups.cp.get() || &group == session.groups.pp.get();
  const CollectiveKind moving = is_neighbours ? CollectiveKind::kSendReceive : CollectiveKind::kAllGather;
  chip.link_gb_per_s = chip.network_gb_per_s = rate(moving);
  chip.all_reduce_gb_per_s = rate(CollectiveKind::kAllReduce);
  chip.reduce_scatter_gb_per_s = rate(CollectiveKind::kReduceScatter);
  // Steps take what activations take beyond their bytes.
  const Bandwidth small = row(moving, 0);
  const double moved = bus_factor(moving, group.size()) * static_cast<double>(small.bytes);
  const double moved_s = moved / (chip.link_gb_per_s * 1e9);
  const double steps = is_neighbours ? 1 : std::log2(group.size());
  chip.link_us = chip.network_us = 1e6 * std::max(0.0, small.seconds - moved_s) / steps;
}

ChipRates measure_chip(CommandContext& context, const Session& session, const CalibrateOptions& options, int local) {
  const double turns = ranks_per_core(session, local);
  const std::array<double, 4> rates = measure_rates(context, session, options, turns);
  constexpr double kGib = 1024.0 * 1024 * 1024;
  ChipRates chip;
  chip.name = options.chip_name;
  chip.tflops = rates[0] / 1e12;
  chip.attention_share = rates[1] / rates[0];
  chip.attention_backward_share = rates[2] / rates[0];
  chip.memory_tb_per_s = rates[3] / 1e12;
  chip.product_share = chip.fp8_share = chip.memory_share = 1;
  const MemoryStats memory = memory_stats(session.device);
  auto memory_bytes = static_cast<double>(memory.total_bytes);
  chip.gpus_per_node = std::max(local, 1);
  chip.link_gb_per_s = chip.network_gb_per_s = chip.memory_tb_per_s * 1e3;
  if (session.device.is_cpu()) {
    // A rank's memory is for tensors; kernels borrow little, and communication hides beside nothing.
    constexpr double kWorkspaceBytes = 4e6;
    memory_bytes = memory_bytes / std::max(local, 1) - static_cast<double>(memory.used_bytes - memory.allocated_bytes);
    chip.context_gib = kWorkspaceBytes / kGib;
    chip.hidden_share = 1;
    chip.operator_us = 0;
    chip.ranks_per_core = turns;
  } else {
    chip.operator_us = measure_operator_us(session);
  }
  chip.memory_gib = memory_bytes / kGib;
  measure_links(session, turns, chip);
  const int ranks = session.groups.world->size();
  chip.sources = {fmt::format("megalith bench calibrate: {} rank{} at once", ranks, ranks == 1 ? "" : "s"),
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

// megalith bench overlap: how much communication time each form of overlap hides.
//
// Two ranks as threads train a preset while a network model delays every collective, asleep. The same steps run without
// delay, with delay and blocking collectives, and with delay and overlap as in training.
#include <algorithm>
#include <optional>

#include "bench/bench.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "train/trainer.h"

namespace megalith {
namespace {

struct OverlapBenchOptions : BenchOptions {
  double gigabytes_per_s = 1, latency_us = 20;
  int64_t rounds = 3;

  OverlapBenchOptions() {
    iterations = 5;
    warmup = 2;
  }
  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field("gigabytes_per_s", gigabytes_per_s, "Bandwidth of the modelled network, each direction.").above(0);
    v.field("rounds", rounds, "How often the three runs of each layout are done, in turn; the median counts.")
        .at_least(1);
    v.field("latency_us", latency_us, "Latency of each collective on the modelled network.")
        .unit("microseconds")
        .at_least(0);
  }
};

struct OverlapCase {
  std::string name, hides;
  std::vector<std::string> arguments;
};

std::vector<OverlapCase> overlap_cases() {
  const std::string zero = "--use_distributed_optimizer", gradients = "--overlap_grad_reduce";
  const std::string buckets = "--ddp_num_buckets=8";
  return {{"data parallel", "all-reduce of gradients behind backward", {gradients, buckets}},
          {"distributed optimizer",
           "reduce-scatter behind backward, all-gather behind forward",
           {zero, gradients, "--overlap_param_gather", buckets}},
          {"FSDP", "all-gather a layer ahead, reduce-scatter a layer behind", {"--use_torch_fsdp2"}},
          {"tensor parallel", "sum of dx behind the weight gradient", {"--tensor_model_parallel_size=2"}},
          {"tensor and sequence",
           "reduce-scatter of dx behind the weight gradient",
           {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
          {"context parallel", "keys, values and their gradients behind attention", {"--context_parallel_size=2"}}};
}

class ElapsedCollector : public MetricsSink {
 public:
  explicit ElapsedCollector(std::vector<double>& ms) : ms_(ms) {}
  void on_step(const StepRecord& record) override { ms_.push_back(record.elapsed_ms); }

 private:
  std::vector<double>& ms_;
};

// Milliseconds per step: the median after warm-up.
double step_ms(const Resolved& run, const BenchOptions& options, const DelayModel& delay, bool is_blocking) {
  const Mesh mesh = Mesh::from_options(run.config.parallel, run.derived.world_size);
  std::vector<double> ms;
  ThreadWorld(mesh.world_size(), {.delay = delay}).run(mesh, [&](Groups& groups) {
    for (const Groups::Pointer& group : groups.all()) group->set_blocking(is_blocking);
    Logger silent({.level = LogLevel::kError});
    const StopRequest stop{0};
    Trainer trainer(run, groups, at::kCPU, silent, stop);
    std::vector<std::unique_ptr<MetricsSink>> sinks;
    if (groups.world->is_last()) sinks.push_back(std::make_unique<ElapsedCollector>(ms));
    trainer.run(std::move(sinks));
  });
  return percentile({ms.begin() + options.warmup, ms.end()}, 0.5);
}

}  // namespace

CommandOptions bench_overlap_options() { return options_of<OverlapBenchOptions, Config>("bench overlap"); }

int bench_overlap(CommandContext& context) {
  BenchInsistence insists;
  insists.arguments = [](const BenchOptions& given) -> std::vector<std::string> {
    return {fmt::format("--train_iters={}", given.iterations + given.warmup),
            "--eval_iters=0",
            "--num_workers=0",
            "--save=null",
            "--load=null",
            "--device=cpu"};
  };
  insists.refused = {{"train_iters", "use --iterations and --warmup"}, {"save", "a benchmark writes only its rows"}};
  BenchReport report{"overlap", at::kCPU, at::kFloat, {}, {}};
  OverlapBenchOptions options;
  const std::vector<OverlapCase> cases = overlap_cases();
  std::optional<Progress> progress;
  for (const OverlapCase& one : cases) {
    CommandContext with = context;
    with.arguments.insert(with.arguments.end(), one.arguments.begin(), one.arguments.end());
    options = {};
    const std::unique_ptr<Resolved> run = resolve_bench(with, options, /*world_size=*/2, insists);
    if (run->wants_help) {
      return print_bench_help(context, *run,
                              "megalith bench overlap [--config FILE] [--gigabytes_per_s N] [--option value ...]");
    }
    const DelayModel network{.latency_s = options.latency_us * 1e-6, .bytes_per_s = options.gigabytes_per_s * 1e9};
    if (!progress) {
      progress.emplace(context.log, "bench overlap", 3 * options.rounds * static_cast<int64_t>(cases.size()), "runs");
    }
    std::vector<double> computing_ms, serial_ms, overlapped_ms;
    for (int64_t round = 0; round < options.rounds; ++round) {
      computing_ms.push_back(step_ms(*run, options, {}, /*is_blocking=*/true));
      progress->advance();
      serial_ms.push_back(step_ms(*run, options, network, /*is_blocking=*/true));
      progress->advance();
      overlapped_ms.push_back(step_ms(*run, options, network, /*is_blocking=*/false));
      progress->advance();
    }
    const double computing = percentile(computing_ms, 0.5), serial = percentile(serial_ms, 0.5);
    const double overlapped = percentile(overlapped_ms, 0.5);
    const double communication = std::max(serial - computing, 0.0);
    report.dtype = run->derived.dtype;
    report.rows.push_back(
        {text_cell("name", "layout", one.name), text_cell("hides", "hides", one.hides),
         number_cell("computing_ms", "computing ms", computing),
         number_cell("communication_ms", "network ms", communication),
         number_cell("serial_ms", "one after the other", serial),
         number_cell("overlapped_ms", "overlapped", overlapped),
         number_cell("hidden_fraction", "hidden", communication > 0 ? (serial - overlapped) / communication : 0)});
  }
  if (progress) progress->finish();
  report.explanations = {
      fmt::format("two ranks as threads, a network of {} GB/s and {} us; medians of steps and of {} rounds",
                  options.gigabytes_per_s, options.latency_us, options.rounds),
      "network ms: what a step takes longer when every collective is waited for at once; hidden: the part of it that "
      "overlap saves"};
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace megalith

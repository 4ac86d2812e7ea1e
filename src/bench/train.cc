// megalith bench train: whole training steps.
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "bench/bench.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "device/memory.h"
#include "train/trainer.h"

namespace megalith {
namespace {

struct TrainBenchOptions : BenchOptions {
  TrainBenchOptions() {
    iterations = 10;
    warmup = 2;
  }
};

// Includes loading of libraries; to a hundredth, as the kernel keeps it.
double seconds_since_process_start() {
  const std::string text = try_read_facts("/proc/self/stat").value_or("");
  // After the name, which may hold blanks: state is field 3, the start in ticks since boot is field 22.
  const size_t name_end = text.rfind(')');
  MEGALITH_CHECK(name_end != std::string::npos, "/proc/self/stat is not as expected");
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start_s = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - start_s;
}

int64_t minor_page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct StepNumbers {
  StepRecord record;
  int64_t page_faults = 0;   // since the step before
  double since_start_s = 0;  // at its end
};

class StepCollector : public MetricsSink {
 public:
  StepCollector(std::vector<StepNumbers>& steps, Progress& progress) : steps_(steps), progress_(progress) {}

  void on_step(const StepRecord& record) override {
    const int64_t faults = minor_page_faults();
    steps_.push_back({record, faults - faults_before_, seconds_since_process_start()});
    progress_.advance();
    faults_before_ = minor_page_faults();
  }

 private:
  std::vector<StepNumbers>& steps_;
  Progress& progress_;
  int64_t faults_before_ = minor_page_faults();
};

BenchCell bytes_cell(std::string key, std::string title, int64_t bytes) {
  return {std::move(key), std::move(title), bytes, format_bytes(bytes)};
}

BenchRow train_row(const std::vector<StepNumbers>& steps, const BenchOptions& options, const Resolved& run,
                   const MemoryStats& memory, const std::string& model_text) {
  std::vector<double> ms, rates, tflops, causal_tflops, faults;
  for (auto step = steps.begin() + options.warmup; step != steps.end(); ++step) {
    ms.push_back(step->record.elapsed_ms);
    rates.push_back(step->record.tokens_per_s_per_device());
    tflops.push_back(step->record.tflops_per_device());
    causal_tflops.push_back(step->record.causal_tflops_per_device());
    faults.push_back(static_cast<double>(step->page_faults));
  }
  const StepRecord& first = steps.front().record;
  const Derived& d = run.derived;
  return {text_cell("name", "", model_text),
          text_cell("shape", "batch", fmt::format("{}x{}", d.global_batch_size, d.seq_length)),
          text_cell("pass", "", "step"),
          text_cell("kernels", "kernels", run.config.runtime.kernels == Kernels::kFused ? "fused" : "reference"),
          number_cell("tokens_per_s_per_device", "tokens/s", percentile(rates, 0.5)),
          number_cell("tokens_per_s_per_device_p10", "p10", percentile(rates, 0.1)),
          number_cell("tokens_per_s_per_device_p90", "p90", percentile(rates, 0.9)),
          number_cell("ms", "ms a step", percentile(ms, 0.5)),
          number_cell("ms_p10", "", percentile(ms, 0.1)),
          number_cell("ms_p90", "", percentile(ms, 0.9)),
          number_cell("tflops", "TFLOP/s", percentile(tflops, 0.5)),
          number_cell("causal_tflops", "halved", percentile(causal_tflops, 0.5)),
          bytes_cell("peak_allocated_bytes", "tensors", memory.peak_allocated_bytes),
          bytes_cell("peak_reserved_bytes", "process", memory.peak_reserved_bytes),
          number_cell("page_faults_per_step", "faults a step", percentile(faults, 0.5)),
          number_cell("page_faults_per_step_max", "", percentile(faults, 1)),
          number_cell("start_to_first_step_s", "start s", steps.front().since_start_s - first.elapsed_ms / 1e3),
          number_cell("first_step_ms", "first ms", first.elapsed_ms),
          {"micro_batch_size", "", d.micro_batch_size, "shown"},
          {"num_devices", "", d.world_size, "shown"},
          {"measured_steps", "", static_cast<int64_t>(ms.size()), "shown"}};
}

int measure_training(CommandContext& context, const Session& session, const BenchOptions& options) {
  const Resolved& run = *session.resolved;
  const StopRequest stop{0};
  Trainer trainer(run, session.groups, session.device, context.log, stop);
  trainer.load();
  std::vector<StepNumbers> steps;
  Progress progress(context.log, "bench train", run.derived.train_iters, "steps");
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<StepCollector>(steps, progress));
  trainer.run(std::move(sinks));
  progress.finish();
  if (!session.is_reporting()) return kExitSuccess;
  if (static_cast<int64_t>(steps.size()) <= options.warmup) {
    throw UserError(fmt::format("only {} steps were done, of which {} warm up", steps.size(), options.warmup),
                    "do not set exit_interval or exit_duration_in_mins");
  }
  BenchReport report{"train", session.device, run.derived.dtype, {}, {}};
  report.explanations = {
      trainer.model_text(),
      fmt::format("medians of {} steps after {} to warm up; tokens/s a device with 10th and 90th percentile",
                  static_cast<int64_t>(steps.size()) - options.warmup, options.warmup),
      "TFLOP/s: attention as if every key were seen; halved: with half of it. tensors, process: peaks of memory",
      "start s: from the start of the process to the first step, which then took first ms"};
  report.rows.push_back(train_row(steps, options, run, memory_stats(session.device), trainer.model_text()));
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace

CommandOptions bench_train_options() { return options_of<TrainBenchOptions, Config>("bench train"); }

int bench_train(CommandContext& context) {
  const Launch launch = discover_launch(context.environment);
  context.log.set_rank(launch.rank, launch.world_size);
  TrainBenchOptions options;
  BenchInsistence insists;
  insists.arguments = [](const BenchOptions& given) -> std::vector<std::string> {
    return {fmt::format("--train_iters={}", given.iterations + given.warmup), "--train_samples=null",
            "--train_epochs=null", "--rampup_batch_size=null", "--step_batch_size_schedule=null", "--eval_iters=0",
            "--save=null", "--save_hf=null",
            "--output_dir=null", "--auto_continue_train=false", "--skip_train=false", "--dry_run=false",
            // A checkpoint gives only weights, so the run begins with step 1.
            "--finetune=true"};
  };
  const std::string writes_nothing = "a benchmark writes only its rows; use megalith train";
  insists.refused = {{"train_iters", "use --iterations and --warmup"},
                     {"train_samples", "use --iterations and --warmup"},
                     {"train_epochs", "use --iterations and --warmup"},
                     {"rampup_batch_size", "use --global_batch_size"},
                     {"step_batch_size_schedule", "use --global_batch_size"},
                     {"save", writes_nothing},
                     {"save_hf", writes_nothing},
                     {"output_dir", writes_nothing},
                     {"log_file", writes_nothing},
                     {"metrics_file", writes_nothing},
                     {"page_file", writes_nothing},
                     {"loss_plot_file", writes_nothing},
                     {"tensorboard_dir", writes_nothing},
                     {"wandb_project", writes_nothing},
                     {"mlflow_experiment_name", writes_nothing},
                     {"mlflow_run_name", writes_nothing},
                     {"mlflow_dir", writes_nothing}};
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options, launch.world_size, std::move(insists));
  if (resolved->wants_help) {
    return print_bench_help(context, *resolved,
                            "megalith bench train [--config FILE] [--iterations N] [--option value ...]");
  }
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = measure_training(context, session, options);
    session.finish();
    return code;
  });
}

}  // namespace megalith

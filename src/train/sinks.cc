#include "train/sinks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/help.h"
#include "core/json.h"
#include "core/visible_text.h"
#include "metrics/compact_console.h"
#include "metrics/console.h"
#include "metrics/json_console.h"
#include "metrics/jsonl.h"
#include "metrics/loss_plot.h"
#include "metrics/mlperf_log.h"
#include "metrics/pictures_console.h"
#include "metrics/run_page.h"
#include "metrics/tensorboard.h"
#include "metrics/torchtitan_console.h"
#include "metrics/torchtune_log.h"
#include "metrics/training_progress.h"
#include "train/report.h"
#include "train/run_end.h"
#include "train/tracking.h"

namespace megalith {
namespace {

// A file has no colours.
std::string without_colours(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const size_t escape = std::min(text.find("\x1b[", at), text.size());
    plain += text.substr(at, escape - at);
    if (escape == text.size()) break;
    at = text.find('m', escape);
    at = at == std::string_view::npos ? text.size() : at + 1;
  }
  return plain;
}

LineWriter console_writer(const SinkSettings& settings, Logger& log) {
  LineWriter print = standard_output(log, settings.on_closed_output);
  if (!settings.also_printed) return print;
  return [print, also = settings.also_printed](std::string_view text) {
    print(text);
    also(visible_text(without_colours(text)));  // other escapes come from names and texts
  };
}

std::unique_ptr<MetricsSink> make_console(const LogOptions& options, int64_t train_samples, const LineWriter& print) {
  switch (options.console_format()) {
    case LogFormat::kMegatron:
      return std::make_unique<ConsoleSink>(options, print);
    case LogFormat::kJson:
      return std::make_unique<JsonConsole>(options.log_interval, print);
    default: {
      const CompactSettings settings{.log_interval = options.log_interval,
                                     .shows_throughput = options.log_throughput,
                                     .has_colour = takes_colour(STDOUT_FILENO),
                                     .train_samples = train_samples};
      return std::make_unique<CompactConsole>(settings, print);
    }
  }
}

// Handles an earlier run's lines in a new run's file.
//   consequence  of leaving them there, for readers
void meet_earlier_lines(const char* option, const std::string& path, const char* consequence, const Resolved& resolved,
                        Logger& log) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || std::filesystem::file_size(path, ignored) == 0) return;
  if (resolved.config.checkpoint.overwrite) {
    std::filesystem::resize_file(path, 0, ignored);
  } else {
    log.warn("{} {} has lines of an earlier start: this run begins at iteration 1, and its lines follow; {}", option,
             path, consequence);
  }
}

// The facts that MLCommons asks of a run.
MlperfRun mlperf_run(const Resolved& resolved) {
  const Config& config = resolved.config;
  const Derived& d = resolved.derived;
  MlperfRun run{.facts = {}, .target = config.log.mlperf_target, .log_interval = config.log.log_interval};
  if (!run.target) run.target = mlperf_target(*config.log.mlperf_benchmark);
  const auto add = [&](const char* key, const OrderedJson& value) { run.facts.emplace_back(key, dump_json(value)); };
  const LearningRateOptions& rate = config.learning_rate;
  const LearningRateCurve curve(rate, d.schedule_samples, d.global_batch_size);
  const int64_t warmup = curve.warmup_samples() / d.global_batch_size;
  add("submission_benchmark", *config.log.mlperf_benchmark);
  add("submission_org", "unspecified");
  add("submission_division", "closed");
  add("submission_status", "onprem");
  add("submission_platform", fmt::format("{} ranks", d.world_size));
  add("seed", config.train.seed);
  add("global_batch_size", d.global_batch_size);
  add("gradient_accumulation_steps", d.num_microbatches);
  add("max_sequence_length", d.seq_length);
  add("train_samples", d.train_samples);
  add("eval_samples", config.train.eval_iters * d.global_batch_size);
  add("max_steps", d.train_iters);
  add("opt_name", config.optimizer.word() == "adam" ? "adamw" : config.optimizer.word());
  add("opt_base_learning_rate", rate.lr);
  add("opt_end_learning_rate", rate.min_lr);
  add("opt_learning_rate_warmup_steps", warmup);
  add("opt_learning_rate_decay_steps", d.train_iters - warmup);
  add("opt_learning_rate_training_steps", d.train_iters);
  add("opt_learning_rate_decay_schedule",
      rate.lr_decay_style == DecayStyle::kCosine ? "cosine with linear warmup" : "linear warmup, then another decay");
  add("opt_adamw_beta_1", config.optimizer.adam_beta1);
  add("opt_adamw_beta_2", config.optimizer.adam_beta2);
  add("opt_adamw_epsilon", config.optimizer.adam_eps);
  add("opt_adamw_weight_decay", rate.weight_decay);
  add("opt_gradient_clip_norm", config.optimizer.clip_grad);
  if (config.lora.enabled) {
    add("lora_rank", config.lora.dim);
    add("lora_alpha", config.lora.alpha);
  }
  return run;
}

int64_t milliseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                     Logger& log) {
  const std::string& model_text = settings.model_text;
  const LogOptions& options = resolved.config.log;
  const Derived& d = resolved.derived;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  const LogFormat format = options.console_format();
  if (!options.quiet) sinks.push_back(make_console(options, d.train_samples, console_writer(settings, log)));
  if (options.log_style && !options.quiet) {
    const LineWriter print = console_writer(settings, log);
    if (options.log_style == "torchtune") {
      sinks.push_back(std::make_unique<TorchtuneLog>(options, resolved.config.optimizer.clip_grad > 0, print));
    } else if (options.log_style == "pictures") {
      sinks.push_back(std::make_unique<PicturesConsole>(options.log_interval, print));
    } else {
      sinks.push_back(std::make_unique<TorchtitanConsole>(options.log_interval, print));
    }
  }
  if (options.metrics_file) {
    if (settings.iteration == 0) {
      meet_earlier_lines("metrics_file", *options.metrics_file, "run_id tells them apart", resolved, log);
    }
    sinks.push_back(std::make_unique<JsonlSink>(*options.metrics_file, log, settings.run_id));
  }
  if (options.mlperf_log_file) {
    if (settings.iteration == 0) {
      meet_earlier_lines("mlperf_log_file", *options.mlperf_log_file, "MLCommons' checker takes a file for one run",
                         resolved, log);
    }
    sinks.push_back(
        std::make_unique<MlperfLog>(*options.mlperf_log_file, mlperf_run(resolved), log, milliseconds_now));
  }
  const std::string batch_text = fmt::format("global batch {} × {} tokens", d.global_batch_size, d.seq_length);
  if (options.loss_plot_file) {
    auto plot =
        std::make_unique<LossPlotSink>(*options.loss_plot_file, fmt::format("{}, {}", model_text, batch_text), log);
    if (settings.iteration > 0) plot->resume(settings.iteration);
    sinks.push_back(std::move(plot));
  }
  if (options.page_file) {
    const auto name = resolved.header.find("exp_name");
    RunPageSettings page{.path = *options.page_file, .title = model_text, .subtitle = batch_text};
    if (name != resolved.header.end()) page.subtitle = name->second + " · " + page.subtitle;
    page.subtitle +=
        fmt::format(" · {} · {} {}", dtype_text(d.dtype), d.world_size, d.world_size == 1 ? "process" : "processes");
    page.configuration = resolved_yaml(*resolved.options, Shown::kNonDefault);
    page.resumed_after = settings.iteration;
    page.train_samples = d.train_samples;
    sinks.push_back(std::make_unique<RunPageSink>(std::move(page), log));
  }
  if (options.writes_tensorboard()) {
    sinks.push_back(std::make_unique<TensorboardSink>(options, log));
  } else if (options.tensorboard_dir) {
    log.note("disable_tensorboard is on: tensorboard_dir is ignored");
  }
  for (auto& sink : make_tracking_sinks(resolved, settings, log)) sinks.push_back(std::move(sink));
  if (options.quiet) return sinks;
  // With a console line each step, no progress line.
  const bool has_line_a_step = format != LogFormat::kMegatron && options.log_interval == 1;
  // After the printing sinks, which clear its line first.
  if (!has_line_a_step) sinks.push_back(std::make_unique<TrainingProgress>(log, d.train_samples));
  if (format == LogFormat::kCompact) {
    sinks.push_back(
        std::make_unique<RunEnd>(resolved, console_writer(settings, log), steady_seconds, settings.era_texts));
  }
  return sinks;
}

}  // namespace megalith

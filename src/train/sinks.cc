// Making the sinks; see sinks.h.
#include "train/sinks.h"

#include "config/help.h"
#include "metrics/console.h"
#include "metrics/jsonl.h"
#include "metrics/loss_plot.h"
#include "metrics/run_page.h"
#include "metrics/tensorboard.h"
#include "metrics/training_progress.h"

namespace megalith {

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const std::string& model_text,
                                                     Logger& log) {
  const LogOptions& options = resolved.config.log;
  const Derived& d = resolved.derived;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<ConsoleSink>(options, standard_output(log)));
  if (options.metrics_file) sinks.push_back(std::make_unique<JsonlSink>(*options.metrics_file, log));
  const std::string batch_text = fmt::format("global batch {} × {} tokens", d.global_batch_size, d.seq_length);
  if (options.loss_plot_file) {
    sinks.push_back(
        std::make_unique<LossPlotSink>(*options.loss_plot_file, fmt::format("{}, {}", model_text, batch_text), log));
  }
  if (options.page_file) {
    const auto name = resolved.header.find("exp_name");
    RunPageSettings page{.path = *options.page_file, .title = model_text, .subtitle = batch_text};
    if (name != resolved.header.end()) page.subtitle = name->second + " · " + page.subtitle;
    page.subtitle +=
        fmt::format(" · {} · {} {}", c10::toString(d.dtype), d.world_size, d.world_size == 1 ? "process" : "processes");
    page.configuration = resolved_yaml(*resolved.options, Shown::kNonDefault);
    sinks.push_back(std::make_unique<RunPageSink>(std::move(page), log));
  }
  if (options.writes_tensorboard()) {
    sinks.push_back(std::make_unique<TensorboardSink>(options, log));
  } else if (options.tensorboard_dir) {
    log.note("disable_tensorboard is on: tensorboard_dir is ignored");
  }
  // Last: the others take its line off the terminal before they print.
  sinks.push_back(std::make_unique<TrainingProgress>(log));
  return sinks;
}

}  // namespace megalith

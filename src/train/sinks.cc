// Making the sinks; see sinks.h.
#include "train/sinks.h"

#include "metrics/console.h"
#include "metrics/jsonl.h"
#include "metrics/loss_plot.h"
#include "metrics/training_progress.h"

namespace megalith {

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Resolved& resolved, const std::string& model_text,
                                                     Logger& log) {
  const LogOptions& options = resolved.config.log;
  const Derived& d = resolved.derived;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<ConsoleSink>(options, standard_output(log)));
  if (options.metrics_file) sinks.push_back(std::make_unique<JsonlSink>(*options.metrics_file, log));
  if (options.loss_plot_file) {
    const std::string subtitle =
        fmt::format("{}, global batch {} × {} tokens", model_text, d.global_batch_size, d.seq_length);
    sinks.push_back(std::make_unique<LossPlotSink>(*options.loss_plot_file, subtitle, log));
  }
  // Last: the others take its line off the terminal before they print.
  sinks.push_back(std::make_unique<TrainingProgress>(log));
  return sinks;
}

}  // namespace megalith

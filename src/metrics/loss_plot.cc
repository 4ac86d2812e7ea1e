// See loss_plot.h.
#include "metrics/loss_plot.h"

#include <algorithm>

#include "core/file.h"

namespace megalith {
namespace {

constexpr double kShortestPause_s = 2;

}  // namespace

LossPlotSink::LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log, SecondsClock clock)
    : file_(path, "loss_plot_file", log, std::move(clock)), train_({.name = "train", .is_noisy = true}) {
  settings_.title = "Loss";
  settings_.subtitle = std::move(subtitle);
  settings_.x_label = "iteration";
  settings_.y_label = "nats per token";
  if (path.has_parent_path()) make_directories(path.parent_path());
}

void LossPlotSink::on_step(const StepRecord& record) {
  if (record.losses.empty()) return;
  train_.add(static_cast<double>(record.iteration), record.losses.front().second);
}

void LossPlotSink::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  auto series = std::find_if(validation_.begin(), validation_.end(),
                             [&](const LongSeries& one) { return one.name() == record.set; });
  if (series == validation_.end()) {
    series = validation_.insert(series, evaluation_series(record.set));
  }
  series->add(static_cast<double>(record.iteration), record.losses.front().second);
  if (!file_.was_written() || file_.since_written_s() >= kShortestPause_s) file_.write([this] { return render(); });
}

void LossPlotSink::on_end() {
  file_.write([this] { return render(); });
}

std::string LossPlotSink::render() const {
  PlotSettings settings = settings_;
  if (const std::string note = thinning_note(train_, "steps"); !note.empty()) {
    settings.subtitle += (settings.subtitle.empty() ? "" : " · ") + note;
  }
  std::vector<PlotSeries> series = {train_.drawn()};
  for (const LongSeries& one : validation_) series.push_back(one.drawn());
  return render_svg_plot(settings, series);
}

}  // namespace megalith

// See loss_plot.h.
#include "metrics/loss_plot.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace megalith {

LossPlotSink::LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log)
    : path_(std::move(path)), log_(log), train_{.name = "train", .is_noisy = true} {
  settings_.title = "Loss";
  settings_.subtitle = std::move(subtitle);
  settings_.x_label = "iteration";
  settings_.y_label = "nats per token";
  if (path_.has_parent_path()) make_directories(path_.parent_path());
}

void LossPlotSink::on_step(const StepRecord& record) {
  if (record.losses.empty()) return;
  train_.x.push_back(static_cast<double>(record.iteration));
  train_.y.push_back(record.losses.front().second);
}

void LossPlotSink::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  auto series = std::find_if(validation_.begin(), validation_.end(),
                             [&](const PlotSeries& one) { return one.name == record.set; });
  if (series == validation_.end()) series = validation_.insert(series, {.name = record.set, .has_markers = true});
  series->x.push_back(static_cast<double>(record.iteration));
  series->y.push_back(record.losses.front().second);
  save();
}

void LossPlotSink::on_end() { save(); }

void LossPlotSink::save() {
  std::vector<PlotSeries> series = {train_};
  series.insert(series.end(), validation_.begin(), validation_.end());
  try {
    write_file_atomic(path_, render_svg_plot(settings_, series));
  } catch (const UserError& error) {
    if (!has_warned_) log_.warn("loss_plot_file: {}", error.message());
    has_warned_ = true;
  }
}

}  // namespace megalith

#include "metrics/loss_plot.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "metrics/drawn_history.h"

namespace megalith {
namespace {

constexpr double kShortestPause_s = 2;

// Around the curves.
constexpr std::string_view kPlotHistoryBegin = "<metadata id=\"megalith-history\">", kPlotHistoryEnd = "</metadata>";

}  // namespace

LossPlotSink::LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log, SecondsClock clock)
    : path_(path),
      log_(log),
      file_(path, "loss_plot_file", log, std::move(clock)),
      train_({.name = "train", .is_noisy = true}) {
  settings_.title = "Loss";
  settings_.subtitle = std::move(subtitle);
  settings_.x_label = "iteration";
  settings_.has_whole_x = true;
  settings_.y_label = "nats per token";
  if (path.has_parent_path()) make_directories(path.parent_path());
}

void LossPlotSink::resume(int64_t iteration) {
  try {
    const std::optional<Json> history = find_embedded_json(path_, kPlotHistoryBegin, kPlotHistoryEnd);
    if (!history) return;
    const auto last = static_cast<double>(iteration);
    const std::string where = path_.string();
    restore_history(get_member(*history, "train", where), last, train_, where);
    for (const Json& one : get_member(*history, "validation", where)) {
      restore_history(one, last, validation_series(json_get<std::string>(one, "name", where)), where);
    }
  } catch (const UserError& error) {
    log_.warn("loss_plot_file: the curves until iteration {} cannot be read back: {}", iteration, error.message());
  }
}

LongSeries& LossPlotSink::validation_series(const std::string& set) {
  auto series =
      std::find_if(validation_.begin(), validation_.end(), [&](const LongSeries& one) { return one.name() == set; });
  if (series == validation_.end()) series = validation_.insert(series, evaluation_series(set));
  return *series;
}

void LossPlotSink::on_step(const StepRecord& record) {
  if (record.losses.empty()) return;
  train_.add(static_cast<double>(record.iteration), record.losses.front().second);
}

void LossPlotSink::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  validation_series(record.set).add(static_cast<double>(record.iteration), record.losses.front().second);
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
  std::string svg = render_svg_plot(settings, series);
  Json history = {{"train", history_of(train_)}, {"validation", Json::array()}};
  for (const LongSeries& one : validation_) history["validation"].push_back(history_of(one));
  const size_t end = svg.rfind("</svg>");
  MEGALITH_CHECK(end != std::string::npos, "a picture without an end");
  svg.insert(end, fmt::format("{}{}{}\n", kPlotHistoryBegin, embedded_json(history), kPlotHistoryEnd));
  return svg;
}

}  // namespace megalith

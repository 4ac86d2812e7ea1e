// A self-contained SVG line chart: axes, ticks, grid, a legend with last values, the reader's light or dark theme. No
// scripts, fonts or network.
#pragma once

#include <string>
#include <vector>

namespace megalith {

struct PlotSeries {
  std::string name;
  std::vector<double> x, y;  // of equal length; non-finite points break the line
  bool has_markers = false;  // dots at the points, for short series
  bool is_noisy = false;     // pale, with a running mean on top
  // If x and y are thinned: means of equally many neighbouring points, for the running mean.
  std::vector<double> mean_x = {}, mean_y = {};
};

struct PlotSettings {
  std::string title;
  std::string subtitle;  // one pale line; may be empty
  std::string x_label, y_label;
  bool has_log_x = false;       // x <= 0 is left out
  bool has_whole_x = false;     // x is a count: no fractional ticks
  bool has_log_y = false;       // if all values are positive
  bool is_log_if_wide = false;  // likewise, if they span a factor of 30
  bool has_style = true;        // false: the page styles the classes
  int width = 860, height = 460;
};

// Series without points are left out; without any series the chart says so. The svg attributes data-x and data-y hold
// "low high from to log" for scripts: end values, their pixels, 1 for a logarithmic axis.
std::string render_svg_plot(const PlotSettings& settings, const std::vector<PlotSeries>& series);

// Escapes <, >, & and quotes for HTML and XML, and makes invisible characters visible (core/visible_text.h).
std::string escape_html(const std::string& text);

// At least two round numbers covering [low, high] in about `count` steps of 1, 2 or 5 times a power of ten, each >=
// least_step.
std::vector<double> round_ticks(double low, double high, int count, double least_step = 0);

}  // namespace megalith

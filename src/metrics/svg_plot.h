// A self-contained SVG line chart, light or dark as the reader's theme. No scripts, fonts or network.
#pragma once

#include <string>
#include <vector>

namespace megalith {

struct PlotSeries {
  std::string name;
  std::vector<double> x, y;  // equally long; non-finite points break the line
  bool has_markers = false;  // dots, for short series
  bool is_noisy = false;     // pale, under a running mean
  // If x and y are thinned: means of equally many neighbours, for the running mean.
  std::vector<double> mean_x = {}, mean_y = {};
};

struct PlotSettings {
  std::string title;
  std::string subtitle;  // one pale line; may be empty
  std::string x_label, y_label;
  bool has_log_x = false;       // omits x <= 0
  bool has_whole_x = false;     // no fractional ticks
  bool has_log_y = false;       // if all are positive
  bool is_log_if_wide = false;  // likewise, if values span a factor of 30
  bool has_style = true;        // false: the page styles the classes
  int width = 860, height = 460;
};

// Omits empty series; without any the chart says so. For scripts, data-x and data-y hold "low high from to log": end
// values, their pixels, 1 if logarithmic.
std::string render_svg_plot(const PlotSettings& settings, const std::vector<PlotSeries>& series);

// For HTML and XML; also shows invisible characters (core/visible_text.h).
std::string escape_html(const std::string& text);

// Two or more round numbers covering [low, high] in about `count` steps of 1, 2 or 5 times a power of ten, each >=
// least_step.
std::vector<double> round_ticks(double low, double high, int count, double least_step = 0);

}  // namespace megalith

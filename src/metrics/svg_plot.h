// A line chart as a self-contained SVG: axes with round ticks, grid, legend with the last values; follows the reader's
// light or dark theme. No scripts, no fonts, no network.
#pragma once

#include <string>
#include <vector>

namespace megalith {

struct PlotSeries {
  std::string name;
  std::vector<double> x, y;  // the same length; points that are not finite interrupt the line
  bool has_markers = false;  // a dot at every point: for series of few points
  bool is_noisy = false;     // drawn pale, with a running mean on top
  // When x and y are not all points, the running mean is taken of these: means of neighbouring points, of one length.
  std::vector<double> mean_x = {}, mean_y = {};
};

struct PlotSettings {
  std::string title;
  std::string subtitle;  // one pale line below; may be empty
  std::string x_label, y_label;
  bool has_log_x = false;       // points with x <= 0 are left out
  bool has_whole_x = false;     // x counts something: no ticks between whole numbers
  bool has_log_y = false;       // a logarithmic y axis where all values are positive
  bool is_log_if_wide = false;  // the same only where they span a factor of 30
  bool has_style = true;        // false: the page around it brings colours for the classes of elements
  int width = 860, height = 460;
};

// Series without a single point to draw are left out; with none at all the chart says that there is nothing to show.
// Attributes of the svg element tell a script where the axes lie: data-x and data-y have "low high from to log", the
// values at both ends, their pixels, and 1 for a logarithmic axis.
std::string render_svg_plot(const PlotSettings& settings, const std::vector<PlotSeries>& series);

// The text with <, >, & and quotes as HTML and XML write them, and visible (core/visible_text.h).
std::string escape_html(const std::string& text);

// Round numbers that cover [low, high] with about `count` steps of 1, 2 or 5 times a power of ten, each at least
// `least_step`; at least two.
std::vector<double> round_ticks(double low, double high, int count, double least_step = 0);

}  // namespace megalith

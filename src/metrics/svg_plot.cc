#include "metrics/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/strings.h"
#include "core/visible_text.h"

namespace megalith {
namespace {

// For colour-blind readers, on both themes.
constexpr const char* kStyle = R"(
  .paper { fill: #ffffff } .ink { fill: #1f2328 } .muted { fill: #656d76 } .grid { stroke: #e4e7eb }
  .axis { stroke: #9aa3ad }
  .s0 { stroke: #1f6feb; fill: #1f6feb } .s1 { stroke: #d9480f; fill: #d9480f } .s2 { stroke: #2b8a3e; fill: #2b8a3e }
  .s3 { stroke: #862e9c; fill: #862e9c } .s4 { stroke: #0b7285; fill: #0b7285 } .s5 { stroke: #a61e4d; fill: #a61e4d }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 12px }
  .title { font-size: 17px; font-weight: 600 }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
  .pale { stroke-opacity: .28; stroke-width: 1.2 }
  .dot { stroke: none } .halo { stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #e6edf3 } .muted { fill: #8d96a0 } .grid { stroke: #21262d }
    .axis { stroke: #57606a }
    .s0 { stroke: #58a6ff; fill: #58a6ff } .s1 { stroke: #ff922b; fill: #ff922b } .s2 { stroke: #51cf66; fill: #51cf66 }
    .s3 { stroke: #da77f2; fill: #da77f2 } .s4 { stroke: #3bc9db; fill: #3bc9db } .s5 { stroke: #f783ac; fill: #f783ac }
    .line { fill: none }
  }
)";
constexpr size_t kNumColours = 6;

struct Point {
  double x, y;
};

// Distinguishes neighbours; thousands as "12 k".
std::string tick_text(double value, double step) {
  if (std::fabs(value) >= 10000 && step >= 100) return format_count(value);
  const int decimals = step > 0 && step < 1 ? static_cast<int>(std::ceil(-std::log10(step) - 1e-9)) : 0;
  return decimals <= 6 ? fmt::format("{:.{}f}", value, decimals) : fmt::format("{:.1e}", value);
}

std::string value_text(double value) {
  const double size = std::fabs(value);
  if (size >= 1e4 && size < 1e15) return format_count(value);
  return size != 0 && (size >= 1e15 || size < 1e-3) ? fmt::format("{:.3e}", value) : fmt::format("{:.4g}", value);
}

std::string log_tick_text(double tick) {
  return tick == std::floor(tick) ? tick_text(tick, tick) : fmt::format("{:.4g}", tick);
}

// Powers of ten, with multiples by 2 and 5 if few; in a narrow range all integer multiples, or round numbers.
std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low))), last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> ticks;
  for (int power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if ((factor == 1.0 || last - first <= 3) && tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
    }
  }
  if (ticks.size() >= 3) return ticks;
  const auto keep_inside = [&] { std::erase_if(ticks, [&](double tick) { return tick < low || tick > high; }); };
  ticks.clear();
  for (int power = first; power <= last; ++power) {
    for (int factor = 1; factor <= 9; ++factor) ticks.push_back(factor * std::pow(10.0, power));
  }
  keep_inside();
  if (ticks.size() >= 3) return ticks;
  ticks = round_ticks(low, high, 5);
  keep_inside();
  return ticks;
}

// From values to pixels.
class Scale {
 public:
  Scale(double low, double high, double pixel_low, double pixel_high, bool is_log)
      : is_log_(is_log), low_(warp(low)), high_(warp(high)), pixel_low_(pixel_low), pixel_high_(pixel_high) {}
  double operator()(double value) const {
    return pixel_low_ + (warp(value) - low_) / (high_ - low_) * (pixel_high_ - pixel_low_);
  }

 private:
  double warp(double value) const { return is_log_ ? std::log10(value) : value; }
  bool is_log_;
  double low_, high_, pixel_low_, pixel_high_;
};

// Over an eightieth of the points to each side, clipped at the ends.
std::vector<Point> running_mean(const std::vector<Point>& points) {
  const auto n = static_cast<std::ptrdiff_t>(points.size());
  const std::ptrdiff_t reach = std::max<std::ptrdiff_t>(2, n / 80);
  std::vector<double> sums(points.size() + 1, 0.0);
  for (size_t i = 0; i < points.size(); ++i) sums[i + 1] = sums[i] + points[i].y;
  std::vector<Point> means;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    // Asymmetry would bend a falling curve's ends.
    const std::ptrdiff_t side = std::min({reach, i, n - 1 - i});
    const double sum = sums[static_cast<size_t>(i + side + 1)] - sums[static_cast<size_t>(i - side)];
    means.push_back({points[static_cast<size_t>(i)].x, sum / static_cast<double>(2 * side + 1)});
  }
  return means;
}

// Drawable points, split at gaps.
std::vector<std::vector<Point>> runs_of(const std::vector<double>& x, const std::vector<double>& y, bool has_log_x) {
  std::vector<std::vector<Point>> runs;
  bool has_gap = true;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i]) || (has_log_x && x[i] <= 0)) {
      has_gap = true;
      continue;
    }
    if (has_gap) runs.emplace_back();
    has_gap = false;
    runs.back().push_back({x[i], y[i]});
  }
  return runs;
}

// Draws the first, lowest, highest and last of many points in a pixel column.
std::string path_of(const std::vector<Point>& pixels) {
  std::string path;
  const auto add = [&](const Point& p) { path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", p.x, p.y); };
  for (size_t i = 0; i < pixels.size();) {
    size_t end = i + 1;
    while (end < pixels.size() && std::floor(pixels[end].x) == std::floor(pixels[i].x)) ++end;
    if (end - i <= 4) {
      for (size_t k = i; k < end; ++k) add(pixels[k]);
    } else {
      const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
      const auto begin = pixels.begin() + static_cast<std::ptrdiff_t>(i),
                 stop = pixels.begin() + static_cast<std::ptrdiff_t>(end);
      auto [low, high] = std::minmax_element(begin, stop, by_y);
      if (high < low) std::swap(low, high);
      add(*begin);
      add(*low);
      add(*high);
      add(*(stop - 1));
    }
    i = end;
  }
  return path;
}

struct DrawnSeries {
  const PlotSeries* series;
  std::vector<std::vector<Point>> runs;
};

class PlotPage {
 public:
  PlotPage(const PlotSettings& settings, const std::vector<PlotSeries>& series)
      : settings_(settings),
        right_(settings.width - 24),
        top_(settings.subtitle.empty() ? 76 : 98),
        bottom_(settings.height - 52) {
    for (const PlotSeries& one : series) add(one);
  }

  std::string render() {
    draw_title();
    if (drawn_.empty()) {
      text(settings_.width / 2.0, settings_.height / 2.0, "muted", "middle", "nothing to show yet");
      return svg_ + "</svg>\n";
    }
    const bool has_log_y = widen_ranges();
    const std::vector<double> y_ticks =
        has_log_y ? log_ticks(y_low_, y_high_) : round_ticks(y_low_, y_high_, settings_.height < 400 ? 4 : 6);
    if (!has_log_y) {
      y_low_ = y_ticks.front();
      y_high_ = y_ticks.back();
    }
    const Scale to_x(x_low_, x_high_, kLeft, right_, settings_.has_log_x),
        to_y(y_low_, y_high_, bottom_, top_, has_log_y);
    svg_.insert(svg_.find(" role=\"img\""),
                fmt::format(" data-x=\"{:.9g} {:.9g} {:.1f} {:.1f} {}\" data-y=\"{:.9g} {:.9g} {:.1f} {:.1f} {}\"",
                            x_low_, x_high_, kLeft, right_, settings_.has_log_x ? 1 : 0, y_low_, y_high_, bottom_, top_,
                            has_log_y ? 1 : 0));
    draw_y_axis(y_ticks, to_y, has_log_y);
    draw_x_axis(to_x);
    for (size_t i = 0; i < drawn_.size(); ++i) draw_curve(i, to_x, to_y);
    draw_legend();
    return svg_ + "</svg>\n";
  }

 private:
  static constexpr double kLeft = 64;

  void add(const PlotSeries& one) {
    MEGALITH_CHECK(one.x.size() == one.y.size(), "series {} has {} x and {} y", one.name, one.x.size(), one.y.size());
    DrawnSeries entry{&one, runs_of(one.x, one.y, settings_.has_log_x)};
    for (const std::vector<Point>& run : entry.runs) {
      for (const Point& p : run) {
        x_low_ = std::min(x_low_, p.x);
        x_high_ = std::max(x_high_, p.x);
        y_low_ = std::min(y_low_, p.y);
        y_high_ = std::max(y_high_, p.y);
      }
    }
    if (!entry.runs.empty()) drawn_.push_back(std::move(entry));
  }

  void text(double x, double y, const char* classes, const char* anchor, const std::string& content) {
    svg_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", classes, x, y,
                        anchor, escape_html(content));
  }

  void line(const char* class_name, double x1, double x2, double y1, double y2) {
    svg_ += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", class_name,
                        x1, x2, y1, y2);
  }

  void draw_title() {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
        "aria-label=\"{2}\">\n{3}<rect class=\"paper\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n"
        "<text class=\"ink title\" x=\"24\" y=\"34\">{2}</text>\n",
        settings_.width, settings_.height, escape_html(settings_.title),
        settings_.has_style ? fmt::format("<style>{}</style>\n", kStyle) : "");
    if (!settings_.subtitle.empty()) text(24, 54, "muted", "start", settings_.subtitle);
  }

  // Gives a single value an extent. True if y is logarithmic.
  bool widen_ranges() {
    if (x_low_ == x_high_) {
      x_low_ = settings_.has_log_x ? x_low_ / 2 : x_low_ - 1;
      x_high_ = settings_.has_log_x ? x_high_ * 2 : x_high_ + 1;
    }
    if (y_high_ - y_low_ < 1e-9 * std::max(1.0, std::fabs(y_high_))) {
      const double margin = std::max(0.05 * std::fabs(y_high_), 1e-6);
      y_low_ -= margin;
      y_high_ += margin;
    }
    const bool has_log_y = y_low_ > 0 && (settings_.has_log_y || (settings_.is_log_if_wide && y_high_ > 30 * y_low_));
    if (has_log_y) {
      y_low_ *= 0.9;
      y_high_ *= 1.1;
    }
    return has_log_y;
  }

  void draw_y_axis(const std::vector<double>& ticks, const Scale& to_y, bool is_log) {
    for (const double tick : ticks) {
      const double y = to_y(tick);
      line("grid", kLeft, right_, y, y);
      text(kLeft - 10, y + 4, "muted", "end", is_log ? log_tick_text(tick) : tick_text(tick, ticks[1] - ticks[0]));
    }
  }

  void draw_x_axis(const Scale& to_x) {
    const std::vector<double> ticks =
        settings_.has_log_x ? log_ticks(x_low_, x_high_)
                            : round_ticks(x_low_, x_high_, settings_.width < 700 ? 5 : 8,
                                          settings_.has_whole_x ? 1 : 0);
    const double slack = 1e-9 * (x_high_ - x_low_);
    for (const double tick : ticks) {
      if (tick < x_low_ - slack || tick > x_high_ + slack) continue;
      const double x = to_x(tick);
      line("axis", x, x, bottom_, bottom_ + 5);
      text(x, bottom_ + 20, "muted", "middle",
           settings_.has_log_x ? log_tick_text(tick) : tick_text(tick, ticks[1] - ticks[0]));
    }
    line("axis", kLeft, right_, bottom_, bottom_);
    text((kLeft + right_) / 2, settings_.height - 12, "muted", "middle", settings_.x_label);
    text(24, top_ - 16, "muted", "start", settings_.y_label);
  }

  void draw_curve(size_t i, const Scale& to_x, const Scale& to_y) {
    const PlotSeries& one = *drawn_[i].series;
    const auto stroke = [&](std::vector<Point> points, const char* more) {
      for (Point& p : points) p = {to_x(p.x), to_y(p.y)};
      svg_ += fmt::format("<path class=\"s{} line{}\" d=\"{}\"/>\n", i % kNumColours, more, path_of(points));
    };
    const bool has_means = one.is_noisy && !one.mean_x.empty();
    for (const std::vector<Point>& run : drawn_[i].runs) {
      const bool is_smoothed = has_means || (one.is_noisy && run.size() >= 20);
      stroke(run, is_smoothed ? " pale" : "");
      if (is_smoothed && !has_means) stroke(running_mean(run), "");
      if (!one.has_markers && run.size() > 1) continue;  // no line
      for (const Point& p : run) {
        svg_ += fmt::format(
            "<circle class=\"s{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{} {}: {}</title></circle>\n",
            i % kNumColours, to_x(p.x), to_y(p.y), escape_html(one.name), tick_text(p.x, 1), value_text(p.y));
      }
    }
    if (!has_means) return;
    for (const std::vector<Point>& run : runs_of(one.mean_x, one.mean_y, settings_.has_log_x)) {
      stroke(running_mean(run), "");
    }
  }

  // Beside the title, clear of curves. Letters take about 7 px.
  void draw_legend() {
    double x = right_;
    for (size_t i = drawn_.size(); i-- > 0;) {
      const PlotSeries& one = *drawn_[i].series;
      const std::string label = fmt::format("{} {}", one.name, value_text(drawn_[i].runs.back().back().y));
      text(x, 34, "ink", "end", label);
      x -= 7.0 * static_cast<double>(label.size()) + 8;
      svg_ += fmt::format("<line class=\"s{} line\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"30\" y2=\"30\"/>\n",
                          i % kNumColours, x - 18, x);
      if (one.has_markers) {
        svg_ += fmt::format("<circle class=\"s{} dot\" cx=\"{:.1f}\" cy=\"30\" r=\"3.5\"/>\n", i % kNumColours, x - 9);
      }
      x -= 18 + 22;
    }
  }

  const PlotSettings& settings_;
  double right_, top_, bottom_;
  double x_low_ = std::numeric_limits<double>::infinity(), x_high_ = -x_low_, y_low_ = x_low_, y_high_ = -x_low_;
  std::vector<DrawnSeries> drawn_;
  std::string svg_;
};

}  // namespace

std::string escape_html(const std::string& text) {
  std::string result;
  for (const char c : visible_text(text)) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<double> round_ticks(double low, double high, int count, double least_step) {
  const double rough = std::max((high - low) / count, least_step),
               power = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = rough <= power       ? power
                      : rough <= 2 * power ? 2 * power
                      : rough <= 5 * power ? 5 * power
                                           : 10 * power;
  std::vector<double> ticks;
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9)),
             last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string render_svg_plot(const PlotSettings& settings, const std::vector<PlotSeries>& series) {
  return PlotPage(settings, series).render();
}

}  // namespace megalith

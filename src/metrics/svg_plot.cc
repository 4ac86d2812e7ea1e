#include "metrics/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

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
  const double left = 64, right = settings.width - 24, top = settings.subtitle.empty() ? 76 : 98,
               bottom = settings.height - 52;

  struct Drawn {
    const PlotSeries* series;
    std::vector<std::vector<Point>> runs;
  };
  std::vector<Drawn> drawn;
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low, y_high = -x_low;
  for (const PlotSeries& one : series) {
    MEGALITH_CHECK(one.x.size() == one.y.size(), "series {} has {} x and {} y", one.name, one.x.size(), one.y.size());
    Drawn entry{&one, runs_of(one.x, one.y, settings.has_log_x)};
    for (const std::vector<Point>& run : entry.runs) {
      for (const Point& p : run) {
        x_low = std::min(x_low, p.x);
        x_high = std::max(x_high, p.x);
        y_low = std::min(y_low, p.y);
        y_high = std::max(y_high, p.y);
      }
    }
    if (!entry.runs.empty()) drawn.push_back(std::move(entry));
  }

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\">\n{3}<rect class=\"paper\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n"
      "<text class=\"ink title\" x=\"24\" y=\"34\">{2}</text>\n",
      settings.width, settings.height, escape_html(settings.title),
      settings.has_style ? fmt::format("<style>{}</style>\n", kStyle) : "");
  const auto text = [&](double x, double y, const char* classes, const char* anchor, const std::string& content) {
    svg += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", classes, x, y,
                       anchor, escape_html(content));
  };
  if (!settings.subtitle.empty()) text(24, 54, "muted", "start", settings.subtitle);
  if (drawn.empty()) {
    text(settings.width / 2.0, settings.height / 2.0, "muted", "middle", "nothing to show yet");
    return svg + "</svg>\n";
  }

  // A single value has no extent.
  if (x_low == x_high) {
    x_low = settings.has_log_x ? x_low / 2 : x_low - 1;
    x_high = settings.has_log_x ? x_high * 2 : x_high + 1;
  }
  if (y_high - y_low < 1e-9 * std::max(1.0, std::fabs(y_high))) {
    const double margin = std::max(0.05 * std::fabs(y_high), 1e-6);
    y_low -= margin;
    y_high += margin;
  }
  const bool has_log_y = y_low > 0 && (settings.has_log_y || (settings.is_log_if_wide && y_high > 30 * y_low));
  if (has_log_y) {
    y_low *= 0.9;
    y_high *= 1.1;
  }
  const std::vector<double> y_ticks =
      has_log_y ? log_ticks(y_low, y_high) : round_ticks(y_low, y_high, settings.height < 400 ? 4 : 6);
  if (!has_log_y) {
    y_low = y_ticks.front();
    y_high = y_ticks.back();
  }
  const Scale to_x(x_low, x_high, left, right, settings.has_log_x), to_y(y_low, y_high, bottom, top, has_log_y);
  svg.insert(
      svg.find(" role=\"img\""),
      fmt::format(" data-x=\"{:.9g} {:.9g} {:.1f} {:.1f} {}\" data-y=\"{:.9g} {:.9g} {:.1f} {:.1f} {}\"", x_low, x_high,
                  left, right, settings.has_log_x ? 1 : 0, y_low, y_high, bottom, top, has_log_y ? 1 : 0));

  for (const double tick : y_ticks) {
    const double y = to_y(tick);
    svg += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left, right,
                       y, y);
    text(left - 10, y + 4, "muted", "end", has_log_y ? log_tick_text(tick) : tick_text(tick, y_ticks[1] - y_ticks[0]));
  }
  const std::vector<double> x_ticks =
      settings.has_log_x ? log_ticks(x_low, x_high)
                         : round_ticks(x_low, x_high, settings.width < 700 ? 5 : 8, settings.has_whole_x ? 1 : 0);
  for (const double tick : x_ticks) {
    if (tick < x_low - 1e-9 * (x_high - x_low) || tick > x_high + 1e-9 * (x_high - x_low)) continue;
    const double x = to_x(tick);
    svg += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x, x, bottom,
                       bottom + 5);
    text(x, bottom + 20, "muted", "middle",
         settings.has_log_x ? log_tick_text(tick) : tick_text(tick, x_ticks[1] - x_ticks[0]));
  }
  svg += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left, right,
                     bottom, bottom);
  text((left + right) / 2, settings.height - 12, "muted", "middle", settings.x_label);
  text(24, top - 16, "muted", "start", settings.y_label);

  for (size_t i = 0; i < drawn.size(); ++i) {
    const PlotSeries& one = *drawn[i].series;
    const auto to_pixels = [&](std::vector<Point> points) {
      for (Point& p : points) p = {to_x(p.x), to_y(p.y)};
      return points;
    };
    const auto stroke = [&](const std::vector<Point>& points, const char* more) {
      svg += fmt::format("<path class=\"s{} line{}\" d=\"{}\"/>\n", i % kNumColours, more, path_of(to_pixels(points)));
    };
    const bool has_means = one.is_noisy && !one.mean_x.empty();
    for (const std::vector<Point>& run : drawn[i].runs) {
      const bool is_smoothed = has_means || (one.is_noisy && run.size() >= 20);
      stroke(run, is_smoothed ? " pale" : "");
      if (is_smoothed && !has_means) stroke(running_mean(run), "");
      if (!one.has_markers && run.size() > 1) continue;  // no line
      for (const Point& p : run) {
        svg += fmt::format(
            "<circle class=\"s{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{} {}: {}</title></circle>\n",
            i % kNumColours, to_x(p.x), to_y(p.y), escape_html(one.name), tick_text(p.x, 1), value_text(p.y));
      }
    }
    if (!has_means) continue;
    for (const std::vector<Point>& run : runs_of(one.mean_x, one.mean_y, settings.has_log_x)) {
      stroke(running_mean(run), "");
    }
  }

  // Beside the title, clear of curves. Letters take about 7 px.
  double x = right;
  for (size_t i = drawn.size(); i-- > 0;) {
    const PlotSeries& one = *drawn[i].series;
    const std::string label = fmt::format("{} {}", one.name, value_text(drawn[i].runs.back().back().y));
    text(x, 34, "ink", "end", label);
    x -= 7.0 * static_cast<double>(label.size()) + 8;
    svg += fmt::format("<line class=\"s{} line\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"30\" y2=\"30\"/>\n", i % kNumColours,
                       x - 18, x);
    if (one.has_markers)
      svg += fmt::format("<circle class=\"s{} dot\" cx=\"{:.1f}\" cy=\"30\" r=\"3.5\"/>\n", i % kNumColours, x - 9);
    x -= 18 + 22;
  }
  return svg + "</svg>\n";
}

}  // namespace megalith

// Pipelines as SVG.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "planner/pipeline_picture.h"
#include "planner/pipeline_scale.h"

namespace megalith {
namespace {

constexpr double kUnitWidth = 26, kWidest = 16000, kNarrowest = 600;
constexpr double kMargin = 8, kRankWidth = 56, kRight = 150, kRow = 24, kBox = 20;  // pixels
constexpr double kCharacter = 6.2, kNameCharacter = 6.6;                            // labels at 10 and 11 px

struct Kind {
  ActionKind kind;
  const char* word;
  std::array<int, 3> colour;
};
constexpr Kind kKinds[] = {
    {ActionKind::kForward, "F forward", {92, 148, 214}},
    {ActionKind::kBackward, "B backward", {98, 176, 110}},
    {ActionKind::kInputBackward, "I gradient of the inputs", {86, 178, 168}},
    {ActionKind::kWeightBackward, "W gradients of the weights", {232, 160, 76}},
};

// Later chunks are up to two thirds lighter.
std::string colour_of(ActionKind kind, int chunk, int num_chunks) {
  const auto& colour = kKinds[static_cast<size_t>(kind)].colour;
  const double light = num_chunks > 1 ? 0.66 * chunk / (num_chunks - 1) : 0;
  const auto mix = [&](int channel) { return static_cast<int>(std::lround(channel + (255 - channel) * light)); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(colour[0]), mix(colour[1]), mix(colour[2]));
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // XML allows no other control characters.
        if (static_cast<unsigned char>(c) >= 0x20) result += c;
    }
  }
  return result;
}

std::string text_at(double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y, more.empty() ? "" : " ", more,
                     escaped(text));
}

// 1, 2 or 5 times a power of ten, at least `least`.
double tick_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// Time zero, after ranks' numbers and names.
double left_of(std::span<const std::string> names) {
  size_t longest = 0;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  return kMargin + kRankWidth + (longest == 0 ? 0 : kNameCharacter * static_cast<double>(longest) + kMargin);
}

// Title, axis and ranks; advances `y` to the bottom.
std::string draw_trace(const PipelineTrace& trace, const std::string& title, const std::string& unit,
                       std::span<const std::string> names, double width, double& y) {
  const double left = left_of(names);
  const double start = trace.start(), whole = trace.makespan();
  const double pixels = whole > 0 ? width / whole : 0;  // per unit of time
  const double rows = kRow * trace.shape.num_ranks;
  std::string result = text_at(left, y + 14, title, "class=\"title\"");
  y += 24;
  if (whole > 0) {
    const double step = tick_step(whole * 60 / width);
    for (int tick = 0; tick * step <= whole * (1 + 1e-9); ++tick) {
      const double x = left + tick * step * pixels;
      result += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" class=\"tick\"/>\n", x,
                            y, y + rows + 4);
      result += text_at(x, y + rows + 15, fmt::format("{:.6g}{}", tick * step, unit), "class=\"axis\"");
    }
  }
  for (int rank = 0; rank < trace.shape.num_ranks; ++rank) {
    const double top = y + kRow * rank + (kRow - kBox) / 2;
    result += text_at(kMargin, top + 14, fmt::format("rank {}", rank));
    if (!names.empty()) result += text_at(kMargin + kRankWidth, top + 14, names[static_cast<size_t>(rank)]);
    for (const TimedAction& timed : trace.ranks[static_cast<size_t>(rank)]) {
      if (is_communication(timed.action.kind)) continue;
      const double x = left + (timed.start - start) * pixels, box = (timed.end - timed.start) * pixels;
      result += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.6g} to {:.6g}{}"
          "</title></rect>\n",
          x, top, box, kBox, colour_of(timed.action.kind, timed.action.chunk, trace.shape.num_chunks),
          timed.action.text(), timed.start - start, timed.end - start, unit);
      const std::string number = fmt::format("{}", timed.action.microbatch);
      if (kCharacter * static_cast<double>(number.size()) + 3 <= box) {
        result += text_at(x + box / 2, top + 14, number, "class=\"box\"");
      }
    }
    result +=
        text_at(left + width + 10, top + 14,
                fmt::format("bubble {:.1f} %, peak {}", 100 * trace.bubble_fraction(rank), trace.peak_live(rank)));
  }
  y += rows + 30;
  return result;
}

std::string draw_legend(const PipelineTrace& trace, double left, double& y) {
  std::string result;
  double x = left;
  for (const Kind& kind : kKinds) {
    const bool is_used = std::any_of(trace.ranks.begin(), trace.ranks.end(), [&](const auto& actions) {
      return std::any_of(actions.begin(), actions.end(),
                         [&](const TimedAction& timed) { return timed.action.kind == kind.kind; });
    });
    if (!is_used) continue;
    for (int chunk = 0; chunk < trace.shape.num_chunks; ++chunk, x += 16) {
      result += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x, y,
                            colour_of(kind.kind, chunk, trace.shape.num_chunks));
    }
    result += text_at(x + 4, y + 11, kind.word);
    x += 7 * static_cast<double>(std::string_view(kind.word).size()) + 20;
  }
  const std::string chunks = trace.shape.num_chunks > 1 ? "from dark to light: a rank's chunks; " : "";
  y += 30;
  result += text_at(left, y, chunks + "numbers are microbatches; peak: how many a rank's chunks hold at once");
  y += 14;
  return result;
}

}  // namespace

std::string pipeline_svg(const PipelineTrace& simulated, const PipelineTrace* measured,
                         std::span<const std::string> names) {
  MEGALITH_CHECK(names.empty() || std::ssize(names) == simulated.shape.num_ranks, "{} names of {} ranks", names.size(),
                 simulated.shape.num_ranks);
  const double width = std::clamp(kUnitWidth * picture_scale(simulated).num_units, kNarrowest, kWidest);
  double y = 8;
  std::string body = draw_trace(simulated, "simulated: " + simulated.schedule, "", names, width, y);
  if (measured != nullptr) body += draw_trace(*measured, "measured: " + measured->schedule, " s", names, width, y);
  body += draw_legend(simulated, left_of(names), y);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\">\n"
             "<style>text {{ font: 11px sans-serif; fill: #222 }} .title {{ font-weight: bold; font-size: 13px }} "
             ".box {{ font-size: 10px; text-anchor: middle }} .axis {{ font-size: 10px; text-anchor: middle; fill: "
             "#666 "
             "}} .tick {{ stroke: #ddd }} rect {{ stroke: #fff; stroke-width: 0.7 }}</style>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             left_of(names) + width + kRight, y + 4) +
         body + "</svg>\n";
}

}  // namespace megalith

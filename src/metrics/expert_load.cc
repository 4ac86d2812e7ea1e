#include "metrics/expert_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megalith {
namespace {

// From models/observation.h; a layer's dropped count follows its choices.
constexpr std::string_view kTokensName = "expert_tokens", kDroppedName = "experts_dropped";

double mean_of(const std::vector<int64_t>& tokens) {
  if (tokens.empty()) return 0;
  return static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0})) /
         static_cast<double>(tokens.size());
}

// White at 0, blue at the mean, orange, then red from twice the mean.
std::string load_colour(double over_mean) {
  struct Stop {
    double at;
    int red, green, blue;
  };
  constexpr Stop kStops[] = {{0, 238, 242, 247}, {1, 96, 150, 205}, {1.5, 240, 160, 60}, {2, 200, 30, 40}};
  const double value = std::clamp(over_mean, 0.0, 2.0);
  size_t next = 1;
  while (next + 1 < std::size(kStops) && kStops[next].at < value) ++next;
  const Stop &a = kStops[next - 1], &b = kStops[next];
  const double part = (value - a.at) / (b.at - a.at);
  const auto mix = [&](int from, int to) { return static_cast<int>(std::lround(from + part * (to - from))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue));
}

}  // namespace

double ExpertLoad::max_over_mean() const {
  const double mean = mean_of(tokens);
  return mean > 0 ? static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) / mean : 0;
}

double ExpertLoad::min_over_mean() const {
  const double mean = mean_of(tokens);
  return mean > 0 ? static_cast<double>(*std::min_element(tokens.begin(), tokens.end())) / mean : 0;
}

std::vector<ExpertLoad> expert_loads_of(const std::vector<ObservedValues>& observations) {
  std::vector<ExpertLoad> loads;
  for (const ObservedValues& one : observations) {
    if (one.name == kTokensName) {
      ExpertLoad& load = loads.emplace_back(ExpertLoad{one.layer, {}, {}});
      for (const double tokens : one.values) load.tokens.push_back(std::llround(tokens));
    } else if (one.name == kDroppedName && !loads.empty() && loads.back().layer == one.layer && !one.values.empty()) {
      loads.back().num_dropped = std::llround(one.values[0]);
    }
  }
  return loads;
}

double max_over_mean(const std::vector<ExpertLoad>& loads) {
  double most = 0;
  for (const ExpertLoad& load : loads) most = std::max(most, load.max_over_mean());
  return most;
}

std::optional<double> dropped_share(const std::vector<ExpertLoad>& loads) {
  bool has_limit = false;
  int64_t num_dropped = 0, num_choices = 0;
  for (const ExpertLoad& load : loads) {
    has_limit = has_limit || load.num_dropped.has_value();
    num_dropped += load.num_dropped.value_or(0);
    num_choices += std::accumulate(load.tokens.begin(), load.tokens.end(), int64_t{0});
  }
  if (!has_limit) return std::nullopt;
  return num_choices > 0 ? static_cast<double>(num_dropped) / static_cast<double>(num_choices) : 0;
}

void ExpertLoadWindow::add(const std::vector<ExpertLoad>& loads) {
  if (loads.empty()) return;
  const auto change = [this](const std::vector<ExpertLoad>& step, int64_t sign) {
    for (const ExpertLoad& load : step) {
      std::vector<int64_t>& total = total_[load.layer];
      total.resize(std::max(total.size(), load.tokens.size()));
      for (size_t i = 0; i < load.tokens.size(); ++i) total[i] += sign * load.tokens[i];
    }
  };
  change(loads, 1);
  steps_.push_back(loads);
  if (steps_.size() <= num_steps_) return;
  change(steps_.front(), -1);
  steps_.pop_front();
}

std::vector<ExpertLoad> ExpertLoadWindow::total() const {
  std::vector<ExpertLoad> loads;
  for (const auto& [layer, tokens] : total_) loads.push_back({layer, tokens, {}});
  return loads;
}

std::string render_expert_loads(const std::vector<ExpertLoad>& loads, int width) {
  size_t num_experts = 0;
  for (const ExpertLoad& load : loads) num_experts = std::max(num_experts, load.tokens.size());
  if (num_experts == 0) return "";
  constexpr int kLeft = 70, kTop = 46, kRight = 12, kBottom = 36;
  const double cell_width = static_cast<double>(width - kLeft - kRight) / static_cast<double>(num_experts);
  const double cell_height = std::clamp(260.0 / static_cast<double>(loads.size()), 8.0, 34.0);
  const double gap = cell_width > 6 ? 1 : 0;
  const double height = kTop + cell_height * static_cast<double>(loads.size()) + kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {:.0f}\" role=\"img\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<text class=\"title\" fill=\"currentColor\" x=\"{}\" y=\"20\" font-size=\"15\" "
      "font-weight=\"600\">Tokens of each expert over the layer's mean</text>\n",
      width, height, kLeft);
  for (size_t row = 0; row < loads.size(); ++row) {
    const ExpertLoad& load = loads[row];
    const double mean = mean_of(load.tokens), y = kTop + cell_height * static_cast<double>(row);
    svg += fmt::format("<text fill=\"currentColor\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">layer {}</text>\n",
                       kLeft - 8, y + cell_height / 2 + 4, load.layer);
    for (size_t expert = 0; expert < load.tokens.size(); ++expert) {
      const double over = mean > 0 ? static_cast<double>(load.tokens[expert]) / mean : 0;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>layer {}, expert {}: "
          "{:.2f}</title></rect>\n",
          kLeft + cell_width * static_cast<double>(expert), y, cell_width - gap, cell_height - 1, load_colour(over),
          load.layer, expert, over);
    }
  }
  // The scale.
  const double y = height - kBottom + 14;
  double x = kLeft;
  for (const double over : {0.0, 0.5, 1.0, 1.5, 2.0}) {
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"22\" height=\"12\" fill=\"{}\"/><text fill=\"currentColor\" "
        "x=\"{:.0f}\" y=\"{:.0f}\">{}{}</text>\n",
        x, y, load_colour(over), x + 28, y + 10, over, over == 2 ? " and more" : "");
    x += 70;
  }
  return svg + "</svg>\n";
}

}  // namespace megalith

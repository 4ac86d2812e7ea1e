#include "metrics/long_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace megalith {

LongSeries::LongSeries(PlotSeries style, size_t most_bins)
    : style_(std::move(style)), most_bins_(most_bins), least_(std::numeric_limits<double>::infinity()) {
  MEGALITH_CHECK(most_bins > 0 && most_bins % 2 == 0, "{} bins", most_bins);
  style_.x.clear();
  style_.y.clear();
}

void LongSeries::merge(Bin& into, const Bin& next) {
  into.last_x = next.last_x;
  into.num_points += next.num_points;
  if (next.num_finite > 0) {
    if (into.num_finite == 0 || next.low.y < into.low.y) into.low = next.low;
    if (into.num_finite == 0 || next.high.y > into.high.y) into.high = next.high;
    into.sum += next.sum;
    into.num_finite += next.num_finite;
  }
  if (next.has_other && !into.has_other) {
    into.has_other = true;
    into.other = next.other;
  }
}

void LongSeries::add(double x, double y) {
  const Point point{x, y};
  if (num_points_++ == 0) first_ = point;
  last_ = point;
  const bool is_finite = std::isfinite(y);
  if (is_finite) least_ = std::min(least_, y);
  const Bin one{.first_x = x,
                .last_x = x,
                .num_points = 1,
                .num_finite = is_finite ? 1 : 0,
                .low = point,
                .high = point,
                .sum = is_finite ? y : 0,
                .has_other = !is_finite,
                .other = point};
  if (!bins_.empty() && bins_.back().num_points < points_per_bin_) return merge(bins_.back(), one);
  if (bins_.size() == most_bins_) {  // an even number
    for (size_t i = 0; i < most_bins_ / 2; ++i) {
      bins_[i] = bins_[2 * i];
      merge(bins_[i], bins_[2 * i + 1]);
    }
    bins_.resize(most_bins_ / 2);
    points_per_bin_ *= 2;
  }
  bins_.push_back(one);
}

void LongSeries::restore(const PlotSeries& drawn, int64_t points_per_bin, int64_t num_points) {
  for (size_t i = 0; i < drawn.x.size(); ++i) add(drawn.x[i], drawn.y[i]);
  if (points_per_bin <= 1) return;
  // Bins were drawn as two points: bins of these hold half of what they represent.
  while (points_per_bin_ < 2) {
    for (size_t i = 0; 2 * i < bins_.size(); ++i) {
      bins_[i] = bins_[2 * i];
      if (2 * i + 1 < bins_.size()) merge(bins_[i], bins_[2 * i + 1]);
    }
    bins_.resize((bins_.size() + 1) / 2);
    points_per_bin_ *= 2;
  }
  const int64_t factor = std::max<int64_t>(1, points_per_bin / 2);
  for (Bin& bin : bins_) {
    bin.num_points *= factor;
    bin.num_finite *= factor;
    bin.sum *= static_cast<double>(factor);
  }
  points_per_bin_ *= factor;
  num_points_ = std::max(num_points, num_points_);
}

PlotSeries LongSeries::drawn() const {
  PlotSeries series = style_;
  const auto put = [&](const Point& point) {
    if (!series.x.empty() && point.x <= series.x.back()) return;
    series.x.push_back(point.x);
    series.y.push_back(point.y);
  };
  if (!is_empty()) put(first_);
  for (const Bin& bin : bins_) {
    std::array<Point, 3> points;
    size_t count = 0;
    if (bin.num_finite > 0) {
      points[count++] = bin.low;
      points[count++] = bin.high;
    }
    if (bin.has_other) points[count++] = bin.other;
    std::sort(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(count),
              [](const Point& a, const Point& b) { return a.x < b.x; });
    for (size_t i = 0; i < count; ++i) put(points[i]);
    if (points_per_bin_ == 1) continue;
    series.mean_x.push_back((bin.first_x + bin.last_x) / 2);
    series.mean_y.push_back(bin.num_finite > 0 ? bin.sum / static_cast<double>(bin.num_finite)
                                               : std::numeric_limits<double>::quiet_NaN());
  }
  if (!is_empty()) put(last_);
  return series;
}

LongSeries evaluation_series(std::string set) {
  constexpr size_t kMostEvaluationBins = 200;  // a marker takes ten pixels
  return LongSeries({.name = std::move(set), .has_markers = true}, kMostEvaluationBins);
}

std::string thinning_note(const LongSeries& series, const std::string& what) {
  if (series.points_per_bin() == 1) return "";
  return fmt::format("of every {} {} the lowest and the highest are drawn", series.points_per_bin(), what);
}

}  // namespace megalith

// A curve of any length in bounded memory, for drawing. Neighbouring points share a bin; when all bins are full, pairs
// merge. A bin keeps its mean, lowest and highest points and one non-finite value, so no spike is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/svg_plot.h"

namespace megalith {

class LongSeries {
 public:
  // A wide chart has about 1100 pixels; a bin draws up to three points.
  static constexpr size_t kMostBins = 700;

  // style      name and looks; its points are ignored
  // most_bins  even
  explicit LongSeries(PlotSeries style, size_t most_bins = kMostBins);

  // x  ascending
  void add(double x, double y);

  // Continues an earlier program's curve from the points it drew.
  // drawn            x and y, ascending
  // points_per_bin, num_points  at that time
  void restore(const PlotSeries& drawn, int64_t points_per_bin, int64_t num_points);

  const std::string& name() const { return style_.name; }
  bool is_empty() const { return num_points_ == 0; }
  int64_t num_points() const { return num_points_; }          // added so far
  int64_t points_per_bin() const { return points_per_bin_; }  // a power of two; 1: every point is drawn
  size_t num_bins() const { return bins_.size(); }
  double last() const { return last_.y; }
  double least() const { return least_; }  // of the finite values; infinite without any

  // Every point while points_per_bin() is 1; then the first, the last and each bin's lowest, highest and non-finite
  // points, with the bins' means in mean_x and mean_y.
  PlotSeries drawn() const;

 private:
  struct Point {
    double x = 0, y = 0;
  };
  struct Bin {
    double first_x = 0, last_x = 0;
    int64_t num_points = 0, num_finite = 0;
    Point low, high;  // finite
    double sum = 0;
    bool has_other = false;
    Point other;  // the first non-finite one
  };
  static void merge(Bin& into, const Bin& next);

  PlotSeries style_;
  size_t most_bins_;
  std::vector<Bin> bins_;
  int64_t points_per_bin_ = 1, num_points_ = 0;
  Point first_, last_;
  double least_;
};

// A series for evaluation losses: few points, drawn with markers.
LongSeries evaluation_series(std::string set);

// "of every 8 steps the lowest and the highest are drawn"; "" when all are. `what` is the points' plural noun.
std::string thinning_note(const LongSeries& series, const std::string& what);

}  // namespace megalith

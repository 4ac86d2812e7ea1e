// A curve of any length in bounded memory, for drawing. Neighbours share a bin; when all are full, pairs merge. Bins
// keep mean, lowest and highest points and one non-finite value: no spike is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/svg_plot.h"

namespace megalith {

class LongSeries {
 public:
  // A wide chart has 1100 pixels; a bin draws up to three points.
  static constexpr size_t kMostBins = 700;

  //   style      its points are ignored
  //   most_bins  even
  explicit LongSeries(PlotSeries style, size_t most_bins = kMostBins);

  // x  ascending
  void add(double x, double y);

  // Continues an earlier program's curve from its drawn points.
  //   drawn            ascending
  //   points_per_bin, num_points  at that time
  void restore(const PlotSeries& drawn, int64_t points_per_bin, int64_t num_points);

  const std::string& name() const { return style_.name; }
  bool is_empty() const { return num_points_ == 0; }
  int64_t num_points() const { return num_points_; }          // added
  int64_t points_per_bin() const { return points_per_bin_; }  // a power of two; 1: all are drawn
  size_t num_bins() const { return bins_.size(); }
  double last() const { return last_.y; }
  double least() const { return least_; }  // finite; infinity without any

  // All points while points_per_bin() is 1; then the first, the last and each bin's lowest, highest and non-finite
  // ones, and bins' means in mean_x and mean_y.
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
    Point other;  // first non-finite
  };
  static void merge(Bin& into, const Bin& next);

  PlotSeries style_;
  size_t most_bins_;
  std::vector<Bin> bins_;
  int64_t points_per_bin_ = 1, num_points_ = 0;
  Point first_, last_;
  double least_;
};

// For evaluation losses: few points, with markers.
LongSeries evaluation_series(std::string set);

// "of every 8 steps the lowest and the highest are drawn"; "" if all are. what: plural noun.
std::string thinning_note(const LongSeries& series, const std::string& what);

}  // namespace megalith

// A curve of any length in bounded memory, for drawing. Neighbouring points share a bin; when there are too many bins,
// every two become one. A bin keeps its mean, one value that is not a number, and its lowest and highest point, so that
// no spike is lost however long the run is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/svg_plot.h"

namespace megalith {

class LongSeries {
 public:
  // A wide chart has some 1100 pixels, and a bin up to three points.
  static constexpr size_t kMostBins = 700;

  // style      name and looks; its points are not used
  // most_bins  even
  explicit LongSeries(PlotSeries style, size_t most_bins = kMostBins);

  // x  ascending
  void add(double x, double y);

  // Goes on from an earlier program's curve, of which only what it drew is left: bins are made of neighbouring points.
  // drawn            its x and y, ascending
  // points_per_bin   as it was then; num_points  that were added then
  void restore(const PlotSeries& drawn, int64_t points_per_bin, int64_t num_points);

  const std::string& name() const { return style_.name; }
  bool is_empty() const { return num_points_ == 0; }
  int64_t num_points() const { return num_points_; }          // that were added
  int64_t points_per_bin() const { return points_per_bin_; }  // a power of two; 1: all points are drawn
  size_t num_bins() const { return bins_.size(); }
  double last() const { return last_.y; }
  double least() const { return least_; }  // of the finite ones; infinite without any

  // Every point while points_per_bin() is 1; then the first, the last, and of every bin the lowest, the highest and
  // one that is not finite, with the bins' means beside them.
  PlotSeries drawn() const;

 private:
  struct Point {
    double x = 0, y = 0;
  };
  struct Bin {
    double first_x = 0, last_x = 0;
    int64_t num_points = 0, num_finite = 0;
    Point low, high;  // of the finite ones
    double sum = 0;
    bool has_other = false;
    Point other;  // the first that is not finite
  };
  static void merge(Bin& into, const Bin& next);

  PlotSeries style_;
  size_t most_bins_;
  std::vector<Bin> bins_;
  int64_t points_per_bin_ = 1, num_points_ = 0;
  Point first_, last_;
  double least_;
};

// A series for the losses of evaluations, which are fewer and drawn with markers.
LongSeries evaluation_series(std::string set);

// "of every 8 steps the lowest and the highest are drawn"; "" when all are. `what` is the plural of what a point is.
std::string thinning_note(const LongSeries& series, const std::string& what);

}  // namespace megalith

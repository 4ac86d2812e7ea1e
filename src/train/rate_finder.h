// Finds a learning rate (find_lr): a short run whose rate grows by equal factors while its loss is watched. Nothing of
// it is kept but a picture. Source: arXiv:1506.01186 (learning-rate range test).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct Resolved;

struct RateFinderOptions {
  bool find_lr = false;
  int64_t find_lr_steps = 100;
  double find_lr_min = 1e-7, find_lr_max = 1;
  std::string find_lr_file = "find_lr.svg";

  void visit(OptionVisitor& v);
};

std::vector<UserError> check_rate_finder(const RateFinderOptions& options);

// With find_lr: gives the run its length, and leaves out what a run keeps, evaluates or goes on from, its own curve of
// the rate, a growing batch, and actions on loss spikes, with a note.
void set_up_rate_finder(Resolved& resolved);

class RateFinder {
 public:
  explicit RateFinder(const RateFinderOptions& options) : options_(options) {}

  double rate(int64_t iteration) const;  // from 1
  // In the order of iterations; a loss may be anything.
  void add(int64_t iteration, double loss);
  // The loss is no number any more, or, smoothed, four times the lowest.
  bool has_diverged() const { return has_diverged_; }

  struct Found {
    double steepest = 0;  // the rate at which the smoothed loss fell fastest
    double lowest = 0;    // at which it was lowest
  };
  // Nothing if the loss never fell.
  std::optional<Found> found() const;
  // A line for people.
  std::string text() const;
  std::string picture() const;  // SVG
  const std::string& file() const { return options_.find_lr_file; }

 private:
  RateFinderOptions options_;
  std::vector<double> rates_, losses_, smoothed_;
  double average_ = 0;  // without its correction
  bool has_diverged_ = false;
};

}  // namespace megalith

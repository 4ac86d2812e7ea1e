// Detects loss spikes: losses far above the median of recent ones, in robust standard deviations (median absolute
// deviation).
//
//   limit = median + threshold * max(1.4826 * MAD, 0.001 * |median|)
//
// Step k's limit uses losses up to step k - 2: an accelerator receives step k before the loss of k - 1 is read, and
// itself decides whether to make it; CPUs and resumed runs thus decide alike. Spikes count like other losses, so a
// lasting rise becomes the new level after half a window.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>

#include "train/fault_options.h"

namespace megalith {

// losses  in any order; not empty
double spike_limit(std::span<const double> losses, double threshold);

class LossWatch {
 public:
  explicit LossWatch(const FaultOptions& options) : options_(options) {}

  // A loss above this limit, or NaN, is a spike at this step; infinity while too few are known or spikes are ignored.
  double limit(int64_t iteration) const;
  // In order of iterations. Non-finite losses are ignored.
  void add(int64_t iteration, double loss);

  // State by name, among a checkpoint's numbers. load() replaces it; UserError for invalid values.
  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  struct Loss {
    int64_t iteration;
    double value;
  };
  size_t least() const;

  FaultOptions options_;
  std::deque<Loss> losses_;  // a window, and the last one
};

}  // namespace megalith

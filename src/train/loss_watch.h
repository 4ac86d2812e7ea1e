// When a loss jumps: it lies above the median of the last losses by more than a number of standard deviations, which
// are estimated by the median absolute deviation, so that an earlier jump among them changes little.
//
//   limit = median + threshold * max(1.4826 * MAD, 0.001 * |median|)
//
// The limit of step k comes from the losses up to step k - 2. An accelerator is given step k before the loss of k - 1
// is read, and decides itself whether to make it; so the CPU and a run that was resumed decide alike. Losses that jump
// count as others do: where a loss stays high, half a window later that is its level.
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

  // Above what a loss of this step is a jump, a NaN being above everything; infinity while too few are known, or
  // nothing is to be done.
  double limit(int64_t iteration) const;
  // In the order of iterations. A loss that is not finite is not kept.
  void add(int64_t iteration, double loss);

  // State by name, among the numbers of a checkpoint. load() forgets what there was; UserError for what save() cannot
  // have written.
  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  struct Loss {
    int64_t iteration;
    double value;
  };
  size_t least() const;

  FaultOptions options_;
  std::deque<Loss> losses_;  // a window of them, and the last one
};

}  // namespace megalith

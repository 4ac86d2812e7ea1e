// How evenly the experts of each layer are loaded: over the last steps, as numbers and as a picture.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/observed_values.h"

namespace megalith {

// One layer's, of one step's global batch: choices of each expert, before any were dropped.
struct ExpertLoad {
  int64_t layer = 0;  // number in the whole model
  std::vector<int64_t> tokens;
  std::optional<int64_t> num_dropped;  // of these choices, for want of capacity; unset where there is no limit

  // The most, and the least, tokens of an expert, divided by the mean of all; 0 without any tokens.
  double max_over_mean() const;
  double min_over_mean() const;
};

// The loads among what a model told of a step, by layer as they come.
std::vector<ExpertLoad> expert_loads_of(const std::vector<ObservedValues>& observations);

// The most over all layers; 0 without any.
double max_over_mean(const std::vector<ExpertLoad>& loads);

// The share of all layers' choices that was dropped; unset when no layer has a limit.
std::optional<double> dropped_share(const std::vector<ExpertLoad>& loads);

// The sum over a number of steps.
class ExpertLoadWindow {
 public:
  explicit ExpertLoadWindow(size_t num_steps = 100) : num_steps_(num_steps) {}

  void add(const std::vector<ExpertLoad>& loads);
  bool is_empty() const { return steps_.empty(); }
  size_t num_steps() const { return steps_.size(); }
  std::vector<ExpertLoad> total() const;  // by layer, ascending

 private:
  size_t num_steps_;
  std::deque<std::vector<ExpertLoad>> steps_;
  std::map<int64_t, std::vector<int64_t>> total_;
};

// A row a layer, a column an expert: pale below the mean load, dark above it, with the load over the mean under the
// pointer. SVG to stand in a page, `width` pixels wide.
std::string render_expert_loads(const std::vector<ExpertLoad>& loads, int width);

}  // namespace megalith

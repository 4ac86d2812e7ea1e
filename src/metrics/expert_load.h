// The balance of each layer's experts, in numbers and pictures.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/observed_values.h"

namespace megalith {

// A step's choices of each expert in the global batch, before dropping.
struct ExpertLoad {
  int64_t layer = 0;  // in the whole model
  std::vector<int64_t> tokens;
  std::optional<int64_t> num_dropped;  // beyond capacity; unset without a limit

  // Over the mean; 0 without tokens.
  double max_over_mean() const;
  double min_over_mean() const;
};

std::vector<ExpertLoad> expert_loads_of(const std::vector<ObservedValues>& observations);

// Over all layers; 0 without any.
double max_over_mean(const std::vector<ExpertLoad>& loads);

// The share of all layers' choices; unset without a limit.
std::optional<double> dropped_share(const std::vector<ExpertLoad>& loads);

class ExpertLoadWindow {
 public:
  explicit ExpertLoadWindow(size_t num_steps = 100) : num_steps_(num_steps) {}

  void add(const std::vector<ExpertLoad>& loads);
  bool is_empty() const { return steps_.empty(); }
  size_t num_steps() const { return steps_.size(); }
  std::vector<ExpertLoad> total() const;  // by layer

 private:
  size_t num_steps_;
  std::deque<std::vector<ExpertLoad>> steps_;
  std::map<int64_t, std::vector<int64_t>> total_;
};

// A row per layer, a column per expert: pale below the mean load, dark above, load over mean in the tooltip. SVG for a
// page, `width` pixels wide.
std::string render_expert_loads(const std::vector<ExpertLoad>& loads, int width);

}  // namespace megalith

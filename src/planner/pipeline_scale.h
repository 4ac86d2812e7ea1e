// What the text and the drawing of a pipeline have in common: the unit of time, and what stands in a box.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "planner/pipeline_trace.h"

namespace megalith {

// Units of time from the first computation to the last one's end, and how long one is.
struct PictureScale {
  double unit = 1;
  int num_units = 1;
};

// The unit is the shortest computation, unless another is so much longer that the picture would be mostly dashes.
inline PictureScale picture_scale(const PipelineTrace& trace) {
  constexpr double kMostUnitsOfOne = 12;
  double shortest = HUGE_VAL, longest = 0;
  for (const auto& actions : trace.ranks) {
    for (const TimedAction& timed : actions) {
      const double duration = timed.end - timed.start;
      if (is_communication(timed.action.kind) || duration <= 0) continue;
      shortest = std::min(shortest, duration);
      longest = std::max(longest, duration);
    }
  }
  const double whole = trace.makespan();
  if (longest == 0 || whole == 0) return {};
  PictureScale scale{std::max(shortest, longest / kMostUnitsOfOne), 1};
  // Sums of rounded times may exceed a whole number of units by a hair.
  scale.num_units = std::max(static_cast<int>(std::ceil(whole / scale.unit - 1e-6)), 1);
  return scale;
}

// What begins a box of text: two chunks differ in capital and small letters, more by their numbers.
inline std::string box_label(const Action& action, const PipelineShape& shape) {
  const std::string whole = Action{action.kind, action.chunk, action.microbatch}.text();
  if (shape.num_chunks > 2) return whole;
  const char letter = action.chunk == 0 ? whole.front() : static_cast<char>(whole.front() - 'A' + 'a');
  return fmt::format("{}{}", letter, action.microbatch);
}

}  // namespace megalith

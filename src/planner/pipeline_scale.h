// The unit of time and labels, for text and drawing.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "planner/pipeline_trace.h"

namespace megalith {

// The width in units of time.
struct PictureScale {
  double unit = 1;
  int num_units = 1;
};

// The shortest computation, unless much longer ones would be mostly dashes.
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
  // Sums of rounded times may exceed a whole number.
  scale.num_units = std::max(static_cast<int>(std::ceil(whole / scale.unit - 1e-6)), 1);
  return scale;
}

// Two chunks differ in case, more by number.
inline std::string box_label(const Action& action, const PipelineShape& shape) {
  const std::string whole = Action{action.kind, action.chunk, action.microbatch}.text();
  if (shape.num_chunks > 2) return whole;
  const char letter = action.chunk == 0 ? whole.front() : static_cast<char>(whole.front() - 'A' + 'a');
  return fmt::format("{}{}", letter, action.microbatch);
}

}  // namespace megalith

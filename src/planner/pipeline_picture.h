// Pictures of pipelines: time goes to the right, each rank has a line, each computation a box.
#pragma once

#include <span>
#include <string>

#include "planner/pipeline_trace.h"

namespace megalith {

// For a terminal: a computation begins with its letter and microbatch and goes on as dashes ("B3---"), a dot is an idle
// unit of time; at the end of a rank's line stand its bubble and the most that was alive. Where a rank has two chunks
// the second one's letters are small ("b3---"), where it has more their number stands too ("B2.3---"). What is wider
// than `columns` goes on below. Transfers are not drawn.
//
// A unit of time is the shortest computation, its scale stands on top. measured, when given, is drawn below, scaled to
// the same width.
std::string pipeline_text(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr, int columns = 120);

// The same as a drawing that needs nothing else: colours say the kind, lighter ones the later chunks; a legend, an axis
// of time, and each box's times as its title.
//   names  of each rank, what it holds; empty: only their numbers are written
std::string pipeline_svg(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr,
                         std::span<const std::string> names = {});

}  // namespace megalith

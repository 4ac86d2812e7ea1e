// Pictures of pipelines: a line per rank, time to the right.
#pragma once

#include <span>
#include <string>

#include "planner/pipeline_trace.h"

namespace megalith {

// For a terminal: a computation is its letter and microbatch, then dashes ("B3---"); a dot is an idle unit; a line ends
// with the rank's bubble and peak of live microbatches. The second of two chunks has lower-case letters ("b3---"), more
// are numbered ("B2.3---"). Lines wrap at `columns`. Transfers are not drawn.
//
// A unit of time is the shortest computation; the scale is at the top. measured, if given, is below in the same width.
std::string pipeline_text(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr, int columns = 120);

// The same, as a self-contained drawing: colours are kinds, lighter ones later chunks; legend, time axis, times in
// tooltips.
//   names  ranks' contents; empty: only numbers
std::string pipeline_svg(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr,
                         std::span<const std::string> names = {});

}  // namespace megalith

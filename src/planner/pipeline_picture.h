// Pictures of pipelines: a line per rank, a box per computation, time to the right.
#pragma once

#include <span>
#include <string>

#include "planner/pipeline_trace.h"

namespace megalith {

// For a terminal: a computation is its letter and microbatch, then dashes ("B3---"); a dot is an idle unit; a rank's
// line ends with its bubble and peak of live microbatches. With two chunks the second has lower-case letters ("b3---"),
// more chunks are numbered ("B2.3---"). Lines wrap at `columns`. Transfers are not drawn.
//
// A unit of time is the shortest computation; its scale is at the top. measured, if given, is drawn below in the same
// width.
std::string pipeline_text(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr, int columns = 120);

// The same as a self-contained drawing: colours are kinds, lighter ones later chunks; a legend, a time axis, times in
// tooltips.
//   names  each rank's content; empty: only numbers
std::string pipeline_svg(const PipelineTrace& simulated, const PipelineTrace* measured = nullptr,
                         std::span<const std::string> names = {});

}  // namespace megalith

// The algorithm families behind make_pipeline_schedule(), one file each. All give the computations of one rank, in
// order; schedule.h says what they are, and which shapes they know.
#pragma once

#include <vector>

#include "parallel/pipeline/schedule.h"

namespace megalith {

// schedule_one_forward.cc
std::vector<Action> gpipe_actions(const PipelineShape& shape, int rank);
std::vector<Action> one_forward_one_backward_actions(const PipelineShape& shape, int rank);
std::vector<Action> interleaved_actions(const PipelineShape& shape, int rank, int group);

// schedule_zero_bubble.cc
std::vector<Action> zero_bubble_actions(const PipelineShape& shape, int rank);
std::vector<Action> zero_bubble_v_actions(const PipelineShape& shape, int rank);

}  // namespace megalith

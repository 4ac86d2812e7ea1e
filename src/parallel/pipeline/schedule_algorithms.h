// The algorithms of make_pipeline_schedule(): each returns one rank's computations in order, for the shapes listed in
// schedule.h.
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

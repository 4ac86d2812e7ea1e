// Schedules for the tests of the planner, with their transfers, and equal times.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "planner/pipeline_simulator.h"

namespace megalith::testing {

inline PipelineSchedule complete_schedule(PipelineAlgorithm algorithm, int num_ranks, int num_microbatches,
                                          int num_chunks = 1, int group = 0) {
  const bool is_vee = algorithm == PipelineAlgorithm::kZeroBubbleV;
  const PipelineShape shape{num_ranks, is_vee ? 2 : num_chunks, num_microbatches,
                            is_vee ? StageOrder::kVee : StageOrder::kLoop};
  return with_communication(make_pipeline_schedule(algorithm, shape, group));
}

inline PipelineCosts equal_costs(const PipelineSchedule& schedule, const StageTimes& times = {}, double transfer = 0) {
  return {std::vector<StageTimes>(static_cast<size_t>(schedule.shape.num_stages()), times), transfer, {}};
}

// Name and shape of a schedule, for messages.
inline std::string described(const PipelineSchedule& schedule) {
  return schedule.name + " p " + std::to_string(schedule.shape.num_ranks) + " v " +
         std::to_string(schedule.shape.num_chunks) + " m " + std::to_string(schedule.shape.num_microbatches);
}

}  // namespace megalith::testing

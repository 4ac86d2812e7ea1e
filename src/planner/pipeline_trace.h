// A pipeline's actions with times, by rank, real or simulated. Runs write it as JSON for pictures and `megalith plan`:
//
//   {"schedule": "1f1b", "num_ranks": 4, "num_chunks": 1, "num_microbatches": 8, "order": "loop",
//    "ranks": [[{"action": "F0.0", "start_s": 0.0, "end_s": 0.012, "live": 1}, …], …]}
//
// order is "loop" or "vee" (StageOrder); actions are Action::text(); live counts microbatches alive after the action.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "planner/pipeline_simulator.h"

namespace megalith {

struct PipelineTrace {
  std::string schedule;
  PipelineShape shape;
  std::vector<std::vector<TimedAction>> ranks;  // without activations

  // From the first computation's start to the last one's end; 0 without any.
  double start() const;
  double makespan() const;
  // Idle share of the makespan, and most live microbatches.
  double bubble_fraction(int rank) const;
  int peak_live(int rank) const;
};

PipelineTrace make_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

// One line, without a newline. ranks: in list order.
std::string pipeline_trace_json(const PipelineSchedule& schedule, const std::vector<std::vector<TimedAction>>& ranks);

// UserError beginning with `where`: broken JSON, missing or mistyped fields, numbers out of range, an end before its
// start, an action outside the shape.
PipelineTrace parse_pipeline_trace(std::string_view text, std::string_view where);
PipelineTrace load_pipeline_trace(const std::filesystem::path& path);

// Each stage's mean F, I and W, for the simulator. Whole backward is half I, half W. InternalError if a stage has no
// forward.
PipelineCosts measured_costs(const PipelineTrace& trace);

// A sentence for each rank's first deviation: shape, action, or number of live microbatches.
std::vector<std::string> compare_with_schedule(const PipelineTrace& trace, const PipelineSchedule& schedule);

}  // namespace megalith

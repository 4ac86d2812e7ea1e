// A pipeline's actual or simulated actions with their times, by rank. Runs write it as JSON for pictures and `megalith
// plan`:
//
//   {"schedule": "1f1b", "num_ranks": 4, "num_chunks": 1, "num_microbatches": 8, "order": "loop",
//    "ranks": [[{"action": "F0.0", "start_s": 0.0, "end_s": 0.012, "live": 1}, …], …]}
//
// order is "loop" or "vee" (StageOrder); actions are Action::text(); live counts live microbatches after the action.
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
  std::vector<std::vector<TimedAction>> ranks;  // without TimedAction::activations

  // From the first computation's start to the last one's end; 0 without any.
  double start() const;
  double makespan() const;
  // A rank's idle share of the makespan, and its peak of live microbatches.
  double bubble_fraction(int rank) const;
  int peak_live(int rank) const;
};

PipelineTrace make_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

// One line without a newline. ranks: by rank, in the order of its list.
std::string pipeline_trace_json(const PipelineSchedule& schedule, const std::vector<std::vector<TimedAction>>& ranks);

// UserError beginning with `where` for malformed traces: broken JSON, missing or mistyped fields, numbers out of range,
// an end before its start, an action outside the shape.
PipelineTrace parse_pipeline_trace(std::string_view text, std::string_view where);
PipelineTrace load_pipeline_trace(const std::filesystem::path& path);

// Each stage's mean times of F, I and W, for the simulator. Whole backward counts half as I and half as W.
// InternalError if a stage has no forward.
PipelineCosts measured_costs(const PipelineTrace& trace);

// Each rank's first deviation from the schedule, one sentence each: another shape, action, or number of live
// microbatches. Empty: none.
std::vector<std::string> compare_with_schedule(const PipelineTrace& trace, const PipelineSchedule& schedule);

}  // namespace megalith

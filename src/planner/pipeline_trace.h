// What happened in a pipeline, or would happen: each rank's actions with their times. A run writes it as JSON, the
// pictures and `megalith plan` read it:
//
//   {"schedule": "1f1b", "num_ranks": 4, "num_chunks": 1, "num_microbatches": 8, "order": "loop",
//    "ranks": [[{"action": "F0.0", "start_s": 0.0, "end_s": 0.012, "live": 1}, …], …]}
//
// order is "loop" or "vee" (StageOrder); actions are written as Action::text() does; live counts what is alive after
// the action; times are in seconds.
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
  std::vector<std::vector<TimedAction>> ranks;  // TimedAction::activations is not part of a trace

  // From the first computation's start to the last one's end, over all ranks; 0 when there is none.
  double start() const;
  double makespan() const;
  // One rank's idle part of the makespan, and the most that was alive at once.
  double bubble_fraction(int rank) const;
  int peak_live(int rank) const;
};

PipelineTrace make_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

// JSON on one line, without a line break at its end. ranks: of every rank, in the order of its list.
std::string pipeline_trace_json(const PipelineSchedule& schedule, const std::vector<std::vector<TimedAction>>& ranks);

// UserError that begins with `where` when the text is not such a trace: broken JSON, something missing or of another
// type, numbers out of range, an end before its start, an action that the shape has no place for.
PipelineTrace parse_pipeline_trace(std::string_view text, std::string_view where);
PipelineTrace load_pipeline_trace(const std::filesystem::path& path);

// The mean time that each stage took for F, I and W, as times for the simulator. A whole backward counts half as I and
// half as W. InternalError when the trace has stages without a forward.
PipelineCosts measured_costs(const PipelineTrace& trace);

// Where a run went another way than the schedule says, one sentence each: another shape, another action in a list,
// another number alive after one. Only the first difference of each rank is told. Empty: the same.
std::vector<std::string> compare_with_schedule(const PipelineTrace& trace, const PipelineSchedule& schedule);

}  // namespace megalith

// Times a pipeline schedule without running it, and proves that it ends.
//
// Ranks work through their lists. A computation waits for its inputs and occupies the rank for its stage's time. A send
// starts at once and takes a transfer's time; a receive does not wait, but the computation that reads it does.
// Transfers between two ranks are sequential, in the sender's order, per direction.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace megalith {

// In any unit. Whole backward takes input_backward + weight_backward.
struct StageTimes {
  double forward = 1, input_backward = 1, weight_backward = 1;
};

struct PipelineCosts {
  std::vector<StageTimes> stages;   // in model order
  double transfer = 0;              // per bundle
  std::vector<double> microbatches; // each one's share of the stages' times; empty: 1
  std::vector<double> activations;  // by stage, per microbatch, in any unit; empty: one each
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  // a transfer's: from when the rank reaches it to arrival
  int live = 0;               // microbatches of this rank's chunks, afterwards
  double activations = 0;     // PipelineCosts::activations, the maximum meanwhile
};

struct PipelineSimulation {
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;
  std::vector<double> busy;              // by rank: computations
  std::vector<int> peak_live;            // by rank
  std::vector<double> peak_activations;  // by rank
  // Of the most idle rank: (makespan - busy) / makespan, and its idle time.
  double bubble_fraction() const;
  double bubble_time() const;
};

// InternalError, with every rank's next action, if the schedule cannot end even when every transfer waits for its peer
// and blocks later ones: sends, receives, inputs or computations missing or repeated, differing orders of transfers,
// cycles.
void check_pipeline_schedule(const PipelineSchedule& schedule);

// Checks first. InternalError if costs do not fit the stages.
PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs);
// The schedule has passed the check, which takes longer than a simulation.
PipelineSimulation simulate_checked_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace megalith

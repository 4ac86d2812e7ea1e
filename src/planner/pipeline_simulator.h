// Times a pipeline schedule without running it, and proves that it ends.
//
// Every rank works through its list. A computation waits for its inputs and occupies the rank for its stage's time. A
// send starts at once and takes the time of a transfer; a receive does not wait, but the computation that reads it
// does. Transfers between two ranks are sequential, in the sender's order, per direction.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace megalith {

// Seconds or any other unit. Whole backward takes input_backward + weight_backward.
struct StageTimes {
  double forward = 1, input_backward = 1, weight_backward = 1;
};

struct PipelineCosts {
  std::vector<StageTimes> stages;   // in model order
  double transfer = 0;              // of one bundle
  std::vector<double> activations;  // by stage, per microbatch, in bytes or any other unit; empty: one each
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  // a transfer: from when the rank reaches it to arrival
  int live = 0;               // microbatches of this rank's chunks alive afterwards
  double activations = 0;     // by PipelineCosts::activations, the maximum during this action
};

struct PipelineSimulation {
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;
  std::vector<double> busy;              // by rank: sum of computations
  std::vector<int> peak_live;            // by rank
  std::vector<double> peak_activations;  // by rank, by PipelineCosts::activations
  // The most idle rank's share of the makespan, (makespan - busy) / makespan, and its idle time.
  double bubble_fraction() const;
  double bubble_time() const;
};

// InternalError with every rank's next action if the schedule cannot end, even when every transfer waits for its peer
// and blocks later ones: missing sends, receives, inputs or computations, repeated ones, differing orders of transfers
// between two ranks, cycles.
void check_pipeline_schedule(const PipelineSchedule& schedule);

// Checks as above, then times it. InternalError if costs do not fit the stages.
PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace megalith

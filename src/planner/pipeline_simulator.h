// Times a pipeline schedule without running it, and proves that it ends.
//
// Every rank works through its list. A computation waits for its inputs, takes its stage's time and occupies the rank.
// A send leaves at once and takes the time of a transfer. A receive does not wait; the computation that reads it does.
// Transfers from one rank to another happen one after another, in the sender's order, apart from those the other way.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace megalith {

// Seconds, or any other unit. Whole backward takes input_backward + weight_backward.
struct StageTimes {
  double forward = 1, input_backward = 1, weight_backward = 1;
};

struct PipelineCosts {
  std::vector<StageTimes> stages;   // of each stage, in the order of the model
  double transfer = 0;              // of one bundle
  std::vector<double> activations;  // of each stage and microbatch, in bytes or any other unit; empty: one each
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  // a send or receive lasts from when the rank comes to it until the bundle has arrived
  int live = 0;               // microbatches of this rank's chunks that are alive after it
  double activations = 0;     // the same by PipelineCosts::activations, at the highest moment of this action
};

struct PipelineSimulation {
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;                   // from the first action to the last
  std::vector<double> busy;              // of each rank: sum of its computations
  std::vector<int> peak_live;            // of each rank: alive at its fullest moment
  std::vector<double> peak_activations;  // of each rank, by PipelineCosts::activations
  // For the rank that is idle longest: the idle part of the makespan, (makespan - busy) / makespan, and the idle time.
  double bubble_fraction() const;
  double bubble_time() const;
};

// Throws InternalError that shows every rank's next action when the schedule cannot end: a receive without its send,
// orders of sends and receives between two ranks that differ, a computation without its inputs, an action twice or
// missing, or a cycle, also when every transfer waits for its peer and holds back the rank's transfers behind it.
void check_pipeline_schedule(const PipelineSchedule& schedule);

// Checks as above, then times it. InternalError when costs are not of this shape's stages.
PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace megalith

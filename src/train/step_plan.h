// A training step's time and memory on a cluster: the run's units (train/step_units.h), priced (planner/work_price.h),
// in its schedule (planner/pipeline_simulator.h), with its data parallelism and optimizer around them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "planner/work_price.h"
#include "train/memory_estimate.h"
#include "train/step_units.h"

namespace megalith {

struct StepPlan {
  double step_s = 0;
  // The pipeline rank that works longest; bubble_s is its idle time. With optimizer_s they are step_s.
  WorkTimes work;
  double bubble_s = 0, optimizer_s = 0;
  // Bytes of the rank with the most, by owner, as train/memory_estimate.h names them.
  int64_t state_bytes = 0, activation_bytes = 0;
  int64_t memory_bytes() const { return state_bytes + activation_bytes; }
};

// A lower bound of step_s, without simulating the schedule, and the memory.
StepPlan plan_bounds(const Resolved& run, const UnitCosts& units, const Cluster& cluster);
StepPlan plan_step(const Resolved& run, const UnitCosts& units, const Cluster& cluster);

// A run's tokens per second and GPU on as many of these chips as it has ranks.
double planned_speed(const Resolved& run, const ChipRates& chip);

// The same on a GPU by its name; null if its rates are not in config_root's file.
SpeedOf speed_on(const std::string& gpu, const std::filesystem::path& config_root);

// What a rank may need beyond an estimate: communicators' buffers, contexts, workspaces, fragments.
int64_t upper_memory_bound(int64_t estimate_bytes);

}  // namespace megalith

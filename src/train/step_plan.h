// A training step's time and memory on a cluster: the run's units (train/step_units.h), priced (planner/work_price.h),
// in its schedule (planner/pipeline_simulator.h), with its data parallelism and optimizer around them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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
  int64_t host_bytes = 0;  // of the same rank, of offloaded state
  int64_t memory_bytes() const { return state_bytes + activation_bytes; }
};

// Everything but its units' costs that a run's plan depends on. Cheap to copy and change, so layouts can be compared
// before any rule of the options is asked.
struct StepShape {
  ParallelOptions parallel;
  DataParallelOptions data;
  RecomputeOptions recompute;
  std::shared_ptr<const PipelinePlan> pipeline;
  int64_t world_size = 1, data_parallel_size = 1, num_microbatches = 1;
  double offloaded_share = 0;  // of the optimizer's state, which the host keeps and updates
};
StepShape shape_of_step(const Resolved& run);
double offloaded_share_of(const OptimizerOptions& optimizer);

// Plans on one cluster, which outlives the pricer. Prices of units, groups and schedules are kept for the next plans.
// Thread-safe.
class StepPricer {
 public:
  // names_products: WorkTimes::products_of
  explicit StepPricer(const Cluster& cluster, bool names_products = true);
  ~StepPricer();
  StepPricer(const StepPricer&) = delete;

  // A lower bound of step_s, without simulating the schedule, and the memory. units: those of earlier calls live on.
  StepPlan bounds(const StepShape& shape, const UnitCosts& units);
  StepPlan plan(const StepShape& shape, const UnitCosts& units);

  struct Kept;

 private:
  std::unique_ptr<Kept> kept_;
};

StepPlan plan_bounds(const Resolved& run, const UnitCosts& units, const Cluster& cluster);
StepPlan plan_step(const Resolved& run, const UnitCosts& units, const Cluster& cluster);

// As many of these chips as a run has ranks; nothing if its nodes would not be full.
std::optional<Cluster> cluster_of(const ChipRates& chip, int64_t ranks);

// A run's tokens per second and GPU on as many of these chips as it has ranks.
double planned_speed(const Resolved& run, const ChipRates& chip);

// The same on a GPU by its name; null if its rates are not in config_root's file.
SpeedOf speed_on(const std::string& gpu, const std::filesystem::path& config_root);

}  // namespace megalith

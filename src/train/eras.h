// Runs that outlive a rank (--fault_tolerance): an era is a part of a run with the same ranks (launch/roll_call.h).
// Between eras a process keeps its weights and optimizer state in host memory; the next era is a run resumed from
// there, over the replicas that are left or came.
//
// A replica is the ranks that hold the whole training state once: those with the same position along the replica axis.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/error.h"
#include "core/time.h"
#include "train/config.h"

namespace megalith {

// Options that fault_tolerance does not go with.
std::vector<UserError> check_fault_tolerance(const Config& config, const Derived& derived);

// kDp, or kDpReplicate where the data-parallel ranks share the optimizer's state.
Axis replica_axis(const DataParallelOptions& options);

// The ranks here (ascending) whose replica is whole. mesh: of the first era.
std::vector<int> whole_replicas(const Mesh& mesh, Axis axis, const std::vector<int>& here);

// Keeps the global batch and the run's length of the first era with fewer ranks.
//   world_size  of the first era
void adjust_to_era(Config& config, const Resolved& first, int64_t num_ranks);

// A rank's part of a run between two eras, or in memory_checkpoint.h.
struct CarriedRun {
  std::vector<std::vector<at::Tensor>> tensors;  // in the order of the trainer's, in host memory
  TrainState train;
  int64_t last_saved_iteration = -1, last_evaluated_iteration = -1;
  bool was_saving = false;     // a checkpoint, beside training
  bool is_after_step = false;  // made by this run, not loaded
  Stopwatch since_saved;
  std::string numbers;     // of the last step made, for ranks that were cut off from them
  bool lacks_step = false;  // its gradients were complete when the era ended, and the step's numbers did not come
};

}  // namespace megalith

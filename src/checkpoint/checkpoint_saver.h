// Saves during training, synchronously or (async_save) beside the next steps: save() copies this rank's share to host
// memory, a thread writes it, a later step boundary or finish() commits it. Both write the same bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_options.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/checkpoint_writer.h"
#include "comm/groups.h"
#include "core/log.h"
#include "core/time.h"

namespace megalith {

class CheckpointSaver {
 public:
  // Requires options.save. groups and log outlive the saver. UserError unless all ranks see the folder; collective over
  // the world.
  CheckpointSaver(const CheckpointOptions& options, const Groups& groups, Logger& log);
  // For tests of the writing steps.
  CheckpointSaver(std::filesystem::path root, SaveSettings settings, bool is_async, const Groups& groups, Logger& log);
  // Waits only for its thread; drops an unfinished checkpoint.
  ~CheckpointSaver();

  // Removes an earlier run's checkpoints after this run's first.
  void replace_earlier_run() { replaces_earlier_run_ = true; }

  // Files that each checkpoint has besides its tensors; rank 0's count.
  void keep(std::vector<KeptFile> files) { settings_.files = std::move(files); }

  // Sets the old checkpoints that the next saves keep.
  Retention& retention() { return settings_.retention; }

  // These are collective over the world, and throw on all ranks if a checkpoint, perhaps the one in flight, could not
  // be written.

  // Returns once training may change `state`'s tensors. A passing checkpoint is removed after the next.
  void save(const CheckpointState& state, bool is_passing = false);
  // At a step boundary: commits if all ranks have written.
  void poll();
  // Waits and commits.
  void finish();

  bool is_pending() const { return pending_ != nullptr; }

 private:
  struct Pending;
  void commit(CheckpointWriter& writer, int64_t iteration, bool is_passing, const Stopwatch& watch);

  std::filesystem::path root_;
  SaveSettings settings_;
  bool is_async_;
  bool replaces_earlier_run_ = false;
  std::optional<int64_t> passing_;  // the newest checkpoint's iteration if passing
  const Groups& groups_;
  Logger& log_;
  std::vector<at::Tensor> buffers_;  // host copies, reused
  std::unique_ptr<Pending> pending_;
};

}  // namespace megalith

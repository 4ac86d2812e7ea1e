// Saving during training: at once, or (async_save) beside the steps that follow.
//
// Asynchronously a save copies this rank's share to host memory and returns; a thread writes it; a later step boundary,
// or finish(), commits. One checkpoint is under way at most: the next save waits for the one before. What is written is
// what a synchronous save would have written, to the byte.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
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
  // options.save is set. Both outlive the saver. UserError when not all ranks see the folder; collective over the
  // world.
  CheckpointSaver(const CheckpointOptions& options, const Groups& groups, Logger& log);
  // For tests, which watch or disturb the steps of writing.
  CheckpointSaver(std::filesystem::path root, SaveSettings settings, bool is_async, const Groups& groups, Logger& log);
  // Waits only for its own thread, not for other ranks: a checkpoint that was not finished is dropped.
  ~CheckpointSaver();

  // Once a checkpoint of this run is on disk, those of an earlier run in the folder are removed.
  void replace_earlier_run() { replaces_earlier_run_ = true; }

  // All of these are collective over the world, and throw on all ranks when a checkpoint, perhaps the one under way,
  // could not be written.

  // When it returns, training may go on and change what `state` refers to. A passing checkpoint is removed once the
  // next one is on disk.
  void save(const CheckpointState& state, bool is_passing = false);
  // At a step boundary: commits the checkpoint under way when all ranks have written theirs.
  void poll();
  // Waits for the checkpoint under way and commits it.
  void finish();

  bool is_pending() const { return pending_ != nullptr; }

 private:
  struct Pending;
  void commit(CheckpointWriter& writer, int64_t iteration, bool is_passing, const Stopwatch& watch);

  std::filesystem::path root_;
  SaveSettings settings_;
  bool is_async_;
  bool replaces_earlier_run_ = false;
  std::optional<int64_t> passing_;  // iteration of the newest checkpoint, where that is a passing one
  const Groups& groups_;
  Logger& log_;
  std::vector<at::Tensor> buffers_;  // host copies, kept for the next checkpoint
  std::unique_ptr<Pending> pending_;
};

}  // namespace megalith

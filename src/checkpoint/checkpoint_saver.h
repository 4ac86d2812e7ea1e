// Saves during training: synchronously, or (async_save) overlapping the next steps: it copies this rank's share to host
// memory and returns; a thread writes it; a later step boundary, or finish(), commits it. The next save waits for the
// one in flight. Both write the same bytes.
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
  // For tests, which observe or disturb the steps of writing.
  CheckpointSaver(std::filesystem::path root, SaveSettings settings, bool is_async, const Groups& groups, Logger& log);
  // Waits only for its own thread, not other ranks; an unfinished checkpoint is dropped.
  ~CheckpointSaver();

  // Once this run has a checkpoint on disk, an earlier run's are removed.
  void replace_earlier_run() { replaces_earlier_run_ = true; }

  // All of these are collective over the world, and throw on all ranks when a checkpoint, perhaps the one in flight,
  // could not be written.

  // On return, training may change what `state` refers to. A passing checkpoint is removed once the next is on disk.
  void save(const CheckpointState& state, bool is_passing = false);
  // At a step boundary: commits the checkpoint in flight if all ranks have written theirs.
  void poll();
  // Waits for the checkpoint in flight and commits it.
  void finish();

  bool is_pending() const { return pending_ != nullptr; }

 private:
  struct Pending;
  void commit(CheckpointWriter& writer, int64_t iteration, bool is_passing, const Stopwatch& watch);

  std::filesystem::path root_;
  SaveSettings settings_;
  bool is_async_;
  bool replaces_earlier_run_ = false;
  std::optional<int64_t> passing_;  // iteration of the newest checkpoint if it is a passing one
  const Groups& groups_;
  Logger& log_;
  std::vector<at::Tensor> buffers_;  // host copies, reused by the next checkpoint
  std::unique_ptr<Pending> pending_;
};

}  // namespace megalith

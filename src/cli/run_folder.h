// The configuration, record and log of a training run, in addition to what sinks and checkpoints write. Locks the run's
// folders against other runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/session.h"
#include "launch/folder_lock.h"
#include "train/run_record.h"
#include "train/trainer.h"

namespace megalith {

// Agreed on by the run's ranks, recorded by rank 0. Empty without --output_dir and --record_file.
struct RunFolderState {
  std::string run_id;
  std::vector<std::unique_ptr<RunRecord>> records;  // rank 0: run.json of the folder, and record_file

  void end(const std::string& status, int64_t last_iteration, int64_t exit_code);
};

// Keeps other runs out of the folders while it lives.
struct RunHold {
  RunHold() = default;
  RunHold(RunHold&&) = default;
  RunHold& operator=(RunHold&&) = default;
  // Innermost folder first, so that empty ones made for the locks are removed.
  ~RunHold() {
    while (!locks.empty()) locks.pop_back();
  }

  std::string run_id;  // of this start
  std::vector<std::unique_ptr<FolderLock>> locks;
  std::vector<std::filesystem::path> uncleared;  // may belong to a run under way, which this process joins
};

// Locks output_dir and save, on rank 0, and removes partial files left by a killed run, except with fault_tolerance.
// UserError if another run holds one; with wait_for_folder all ranks wait for it. SilentExit if a signal arrives
// meanwhile. Unwritable folders are left to check_outputs().
RunHold hold_run_folders(CommandContext& context, const Launch& launch, const Config& config, const StopRequest& stop);

// Removes partial files left by a killed run, once this one is known to begin anew.
void clear_run_folders(const RunHold& hold, Logger& log);

// Writes the folder's config.yaml and begins the records; collective over the world. Call after the trainer has loaded.
RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer,
                                const RunHold& hold);

// Opens log_file on this rank, if set.
void open_log(CommandContext& context, const Resolved& resolved, const Launch& launch);

}  // namespace megalith

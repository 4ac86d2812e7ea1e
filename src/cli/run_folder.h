// What a training run leaves beside what the sinks and checkpoints write: configuration, record and log. While it lives
// no other run writes to its folders.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/session.h"
#include "launch/folder_lock.h"
#include "train/run_record.h"
#include "train/trainer.h"

namespace megalith {

// What the ranks of a run agree on, and rank 0 records. Nothing without --output_dir and --record_file.
struct RunFolderState {
  std::string run_id;
  std::vector<std::unique_ptr<RunRecord>> records;  // rank 0: run.json of the folder, and record_file

  void end(const std::string& status, int64_t last_iteration, int64_t exit_code);
};

// Other runs stay out of the folders while this lives.
struct RunHold {
  RunHold() = default;
  RunHold(RunHold&&) = default;
  RunHold& operator=(RunHold&&) = default;
  // The innermost folder first, so that empty ones that were made for the locks go.
  ~RunHold() {
    while (!locks.empty()) locks.pop_back();
  }

  std::string run_id;  // of this start
  std::vector<std::unique_ptr<FolderLock>> locks;
};

// Holds output_dir and save, on rank 0, and removes what a run that was killed left half-written there. UserError when
// another run holds one; with wait_for_folder all ranks return when none does. Folders that cannot be written are left
// to check_outputs(). SilentExit when a signal comes while this waits.
RunHold hold_run_folders(CommandContext& context, const Launch& launch, const Config& config, const StopRequest& stop);

// Writes the folder's config.yaml and begins the records; collective over the world. The trainer has loaded what it
// goes on from.
RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer,
                                const RunHold& hold);

// Opens log_file on this rank, if there is one.
void open_log(CommandContext& context, const Resolved& resolved, const Launch& launch);

}  // namespace megalith

// What a training run leaves beside what the sinks and checkpoints write: configuration, record and log.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/session.h"
#include "train/run_record.h"
#include "train/trainer.h"

namespace megalith {

// What the ranks of a run agree on, and rank 0 records. Nothing without --output_dir and --record_file.
struct RunFolderState {
  std::string run_id;
  std::vector<std::unique_ptr<RunRecord>> records;  // rank 0: run.json of the folder, and record_file

  void end(const std::string& status, int64_t last_iteration, int64_t exit_code);
};

// Writes the folder's config.yaml and begins the records; collective over the world. The trainer has loaded what it
// goes on from.
RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer);

// Opens log_file on this rank, if there is one.
void open_log(CommandContext& context, const Resolved& resolved, const Launch& launch);

}  // namespace megalith

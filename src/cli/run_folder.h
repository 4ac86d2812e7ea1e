// What a training run leaves in its folder beside what the sinks and checkpoints write: configuration, record and log.
#pragma once

#include <memory>
#include <string>

#include "cli/session.h"
#include "train/run_record.h"
#include "train/trainer.h"

namespace megalith {

// What the ranks of a run with a folder agree on, and rank 0 records. Nothing without --output_dir.
struct RunFolderState {
  std::string run_id;
  std::unique_ptr<RunRecord> record;  // rank 0
};

// Writes config.yaml and begins the record; collective over the world. The trainer has loaded what it goes on from.
RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer);

// Opens log_file on this rank, if there is one.
void open_log(CommandContext& context, const Resolved& resolved, const Launch& launch);

}  // namespace megalith

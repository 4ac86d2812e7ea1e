// Another trainer's checkpoint in --load or --pretrained_checkpoint, taken as one of ours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/resume.h"
#include "foreign/foreign_checkpoint.h"
#include "train/config.h"

namespace megalith {

// Null if --load names none. UserErrors of find_foreign().
std::optional<ForeignFolder> foreign_load(const Resolved& run);

// The one in --pretrained_checkpoint, whose weights are taken when --load has none.
std::optional<ForeignFolder> foreign_pretrained(const Resolved& run);

// The architecture that it records, as option values. UserError if neither it nor the run says one.
void apply_foreign_architecture(Resolved& resolved, const ForeignFolder& found);

// For the run's model; without its optimizer's state where the run takes none. UserErrors of open_foreign().
StoredCheckpoint open_foreign_load(const ForeignFolder& found, const Resolved& run, bool with_optimizer,
                                   std::vector<std::string>& notes);

// resume(), whoever wrote the checkpoint.
std::optional<Resumed> resume_run(const Resolved& run, CheckpointState& state, const Groups& groups, Logger& log);

}  // namespace megalith

// What a run starts from: finds the checkpoint that the options name, and loads it.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/configuration.h"
#include "comm/groups.h"
#include "core/log.h"

namespace megalith {

struct Resumed {
  std::filesystem::path folder;                      // of the checkpoint
  bool is_finetune = false;                          // only weights: counters start at zero
  bool has_optimizer = false;                        // optimizer states were loaded
  Configuration configuration;                       // of the run that wrote it
  std::vector<ConfigurationDifference> differences;  // between this and the present one
};

// Looks in `load`, then in `pretrained_checkpoint`, verifies the checkpoint that it finds and loads it into `state`
// (with finetune the TrainState keeps its present values). Returns nothing when there is no checkpoint: the run starts
// afresh, or the caller loads load_hf, over which a checkpoint in `load` wins. UserError with
// exit_on_missing_checkpoint. Collective over the world.
std::optional<Resumed> resume(const CheckpointOptions& options, CheckpointState& state, const Groups& groups,
                              Logger& log);

// Says what load_checkpoint() left as it is of what a checkpoint need not have (LoadSettings::begun_afresh).
void note_begun_afresh(const std::filesystem::path& folder, const std::set<std::string>& keys, Logger& log);

// Whether load and save are one folder: then the first start of a run finds nothing in it, and is right to begin.
bool loads_where_it_saves(const CheckpointOptions& options);

// Whether a resume would find a checkpoint: then there is no need to initialise weights or to read load_hf. Looks at
// names only. Collective over the world.
bool has_checkpoint(const CheckpointOptions& options, const Groups& groups);

}  // namespace megalith

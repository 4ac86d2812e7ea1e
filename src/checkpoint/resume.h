// A run's starting point: finds and loads the checkpoint that the options name.
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
  std::filesystem::path folder;
  bool is_finetune = false;                          // only weights: counters start at zero
  bool has_optimizer = false;                        // its states were loaded
  Configuration configuration;                       // of the run that wrote it
  std::vector<ConfigurationDifference> differences;  // from the present configuration
};

// Finds a checkpoint in `load`, then in `pretrained_checkpoint`, verifies it and loads it into `state` (finetune leaves
// the TrainState unchanged). Nothing if there is none: the run starts afresh, or the caller loads load_hf, over which
// `load` has priority. UserError with exit_on_missing_checkpoint. Collective over the world.
std::optional<Resumed> resume(const CheckpointOptions& options, CheckpointState& state, const Groups& groups,
                              Logger& log);

// Logs optional states that load_checkpoint() left unchanged (LoadSettings::begun_afresh).
void note_begun_afresh(const std::filesystem::path& folder, const std::set<std::string>& keys, Logger& log);

// True if load and save are one folder: a run's first start rightly finds nothing in it.
bool loads_where_it_saves(const CheckpointOptions& options);

// True if a resume would find a checkpoint, so that weights need no initialising or load_hf. Looks at names only.
// Collective over the world.
bool has_checkpoint(const CheckpointOptions& options, const Groups& groups);

}  // namespace megalith

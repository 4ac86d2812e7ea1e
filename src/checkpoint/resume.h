// Finds and loads a run's starting checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/configuration.h"
#include "comm/groups.h"
#include "core/log.h"

namespace megalith {

struct Resumed {
  std::filesystem::path folder;
  bool is_finetune = false;                          // only weights, counters zero
  bool has_optimizer = false;                        // states were loaded
  Configuration configuration;                       // the writing run's
  std::vector<ConfigurationDifference> differences;  // from the present one
};

// Looks in `load`, then in `pretrained_checkpoint`, verifies and loads into `state` (finetune keeps the TrainState).
// Null if there is none: the run starts afresh, or the caller loads load_hf, which `load` overrides. UserError with
// exit_on_missing_checkpoint. Collective over the world.
std::optional<Resumed> resume(const CheckpointOptions& options, CheckpointState& state, const Groups& groups,
                              Logger& log);

// Done with a checkpoint that resume() found, and with another trainer's.
//   folder  for messages
Resumed resume_from(const std::filesystem::path& folder, const CheckpointOpener& open, bool is_finetune,
                    const CheckpointOptions& options, CheckpointState& state, const Groups& groups, Logger& log);

// Logs LoadSettings::begun_afresh.
void note_begun_afresh(const std::filesystem::path& folder, const std::set<std::string>& keys, Logger& log);

// A run's first start then rightly finds nothing.
bool loads_where_it_saves(const CheckpointOptions& options);

// Looks at names only: if true, weights need neither initialising nor load_hf. Collective over the world.
bool has_checkpoint(const CheckpointOptions& options, const Groups& groups);

}  // namespace megalith

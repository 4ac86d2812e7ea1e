// A folder of checkpoints, as in --save and --load: iter_0000100/, iter_0000200/, … and a pointer to the newest.
//
// A checkpoint is built under a hidden name, so it is complete once it has its own. The pointer
// (latest_checkpointed_iteration.txt, as in Megatron-LM) is a hint: a run killed between two renames leaves it one
// behind. Checkpoints name their predecessors: we take the newest descendant of the pointer's, which ignores abandoned
// ones after a restart from an older checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "core/log.h"

namespace megalith {

inline constexpr const char* kPointerFile = "latest_checkpointed_iteration.txt";

std::string checkpoint_folder_name(int64_t iteration);  // "iter_0000100"
std::optional<int64_t> parse_checkpoint_folder_name(std::string_view name);

// Iterations with a folder, damaged ones included, ascending. Empty if the root does not exist.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& root);

// The folder of an iteration's checkpoint: its own name, or the hidden one from a replacement that was killed
// (replaced_target() in core/file.h; the next save restores it).
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, int64_t iteration);

struct Pointer {
  std::optional<int64_t> iteration;
  std::string problem;  // why there is no iteration: "is missing", "is empty", "holds 'xyz'"
};
Pointer read_pointer(const std::filesystem::path& root);
void write_pointer(const std::filesystem::path& root, int64_t iteration);

// Faults, one line each with tensor and file; empty if every byte is as written. The ranks share the reading and get
// the same answer.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, Group& world);

struct FoundCheckpoint {
  int64_t iteration = 0;
  std::filesystem::path folder;
};

// The newest intact checkpoint, or that of iteration `step`; logs a choice other than the pointer's. `root` may be one
// checkpoint's folder. Nothing without any checkpoint; UserError if none requested is intact. Collective over `world`;
// rank 0 looks.
std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step,
                                               Group& world, Logger& log);

// UserError on all ranks if some cannot see rank 0's files in `root`: each host would keep a part of every checkpoint.
// For use before training; leaves nothing behind. Collective over the world; a no-op in a world of one.
// sees  true if this rank sees a file; for tests
void check_shared_folder(const std::filesystem::path& root, Group& world,
                         const std::function<bool(const std::filesystem::path&)>& sees = {});

// Old checkpoints to keep once a new one is complete.
struct Retention {
  std::optional<int64_t> keep_last;        // the newest ones
  std::optional<int64_t> retain_interval;  // multiples of this iteration are always kept
};

// Called before each change on disk, with its name; tests stop there.
using StepHook = std::function<void(std::string_view)>;

// Deletes what the policy does not keep, but never `iteration`'s checkpoint, newer ones or symbolic links. With a
// retain_interval and no keep_last only `previous` may go, as in Megatron-LM. Failures are warnings.
void apply_retention(const std::filesystem::path& root, int64_t iteration, std::optional<int64_t> previous,
                     const Retention& retention, Logger& log, const StepHook& before_step);

// Removes the checkpoints of all other iterations, newer ones included, except symbolic links. Failures are warnings.
void remove_other_checkpoints(const std::filesystem::path& root, int64_t iteration, Logger& log);

// Removes killed runs' hidden folders of checkpoints being written or deleted. One being replaced without a successor
// gets its name back.
void remove_leftovers(const std::filesystem::path& root, Logger& log, const StepHook& before_step);

}  // namespace megalith

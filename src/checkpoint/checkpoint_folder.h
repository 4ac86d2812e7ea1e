// A folder of checkpoints (--save, --load): iter_0000100/, iter_0000200/, … and a pointer to the newest.
//
// Checkpoints are built under a hidden name: a named one is complete. The pointer (latest_checkpointed_iteration.txt,
// as in Megatron-LM) is a hint: a run killed between two renames leaves it at the previous one. Checkpoints name their
// predecessors: we take the newest descendant of the pointer's, which ignores those abandoned by a restart from an
// older one.
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

// Ascending iterations, damaged ones included. Empty without a root.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& root);

// Its own name, or the hidden one of a killed replacement (replaced_target() in core/file.h), which the next save
// restores.
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, int64_t iteration);

struct Pointer {
  std::optional<int64_t> iteration;
  std::string problem;  // "is missing", "is empty", "holds 'xyz'"
};
Pointer read_pointer(const std::filesystem::path& root);
void write_pointer(const std::filesystem::path& root, int64_t iteration);

// Faults, a line each with tensor and file; empty if every byte is as written. Ranks share the reading and get the same
// answer.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, Group& world);

struct FoundCheckpoint {
  int64_t iteration = 0;
  std::filesystem::path folder;
};

// The newest intact checkpoint, or iteration `step`'s; logs a choice other than the pointer's. `root` may be a
// checkpoint. Null if there is none; UserError if none is intact. Collective over `world`; rank 0 looks.
std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step,
                                               Group& world, Logger& log);

// UserError on all ranks if some do not see rank 0's files in `root`: each host would keep a part of every checkpoint.
// Leaves no files. Collective over the world.
//   sees  for tests: true if this rank sees a file
void check_shared_folder(const std::filesystem::path& root, Group& world,
                         const std::function<bool(const std::filesystem::path&)>& sees = {});

// Old checkpoints to keep after a new one.
struct Retention {
  std::optional<int64_t> keep_last;        // newest ones
  std::optional<int64_t> retain_interval;  // multiples of it are always kept
  std::vector<int64_t> kept = {};          // so are these iterations'
};

// Called with a name before each change on disk; tests stop there.
using StepHook = std::function<void(std::string_view)>;

// Never deletes `iteration`'s checkpoint, newer ones or symbolic links. With only a retain_interval just `previous` may
// go, as in Megatron-LM. Failures are warnings.
void apply_retention(const std::filesystem::path& root, int64_t iteration, std::optional<int64_t> previous,
                     const Retention& retention, Logger& log, const StepHook& before_step);

// Newer ones too, but no symbolic links. Failures are warnings.
void remove_other_checkpoints(const std::filesystem::path& root, int64_t iteration, Logger& log);

// Removes killed runs' hidden folders. One being replaced without a successor gets its name back.
void remove_leftovers(const std::filesystem::path& root, Logger& log, const StepHook& before_step);

}  // namespace megalith

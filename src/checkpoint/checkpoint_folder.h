// A folder of checkpoints, as --save and --load name it: iter_0000100/, iter_0000200/, … and a pointer to the newest.
//
// A checkpoint is built under a hidden name, so it is whole once its folder has its own name. The pointer
// (latest_checkpointed_iteration.txt, as Megatron-LM writes it) is advice. A run that is killed between the two renames
// leaves it one checkpoint behind. Each checkpoint says which one it follows, so we take the newest that follows the
// pointer's. A run that was sent back to an older checkpoint therefore ignores the newer ones that it had left.
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

// Iterations whose folders exist, damaged ones included, ascending. Empty when the root does not exist.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& root);

// Where the checkpoint of an iteration lies: under its name, or under the hidden one that it was moved to by a run that
// was killed while it replaced it (see replaced_target() in core/file.h; the next save puts it back).
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, int64_t iteration);

struct Pointer {
  std::optional<int64_t> iteration;
  std::string problem;  // why there is no iteration: "is missing", "is empty", "holds 'xyz'"
};
Pointer read_pointer(const std::filesystem::path& root);
void write_pointer(const std::filesystem::path& root, int64_t iteration);

// What is wrong with a checkpoint, one line a fault, each naming tensor and file; empty when every byte is as it was
// written. The ranks share the reading and all get the same answer.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, Group& world);

struct FoundCheckpoint {
  int64_t iteration = 0;
  std::filesystem::path folder;
};

// The checkpoint to load: the newest intact one. Says which it takes when that is not what the pointer says. `root` may
// also be the folder of one checkpoint. With `step`, only that iteration's.
// Nothing when there is no checkpoint at all. UserError when there are some, but none that is asked for is intact.
// Collective over `world`; rank 0 looks.
std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& root, std::optional<int64_t> step,
                                               Group& world, Logger& log);

// UserError on all ranks when some do not see what rank 0 puts into `root`: each host would keep a part of every
// checkpoint. Before training, so that no work is lost; leaves nothing behind. Collective over the world; does nothing
// in a world of one.
// sees  whether this rank sees a file; for tests
void check_shared_folder(const std::filesystem::path& root, Group& world,
                         const std::function<bool(const std::filesystem::path&)>& sees = {});

// Which old checkpoints stay once a new one is complete.
struct Retention {
  std::optional<int64_t> keep_last;        // so many of the newest stay
  std::optional<int64_t> retain_interval;  // multiples of this iteration stay always
};

// Called before each change on disk with what it will be; for tests that stop there.
using StepHook = std::function<void(std::string_view)>;

// Deletes what the policy does not keep, never the checkpoint of `iteration` nor a newer one nor a symbolic link. With
// a retain_interval and no keep_last only `previous` may go, as in Megatron-LM. Failures are warnings.
void apply_retention(const std::filesystem::path& root, int64_t iteration, std::optional<int64_t> previous,
                     const Retention& retention, Logger& log, const StepHook& before_step);

// Removes the checkpoints of all other iterations, newer ones too, but no symbolic link. Failures are warnings.
void remove_other_checkpoints(const std::filesystem::path& root, int64_t iteration, Logger& log);

// Removes what killed runs left: hidden folders of checkpoints that were being written or deleted. One that was being
// replaced and has no successor gets its name back.
void remove_leftovers(const std::filesystem::path& root, Logger& log, const StepHook& before_step);

}  // namespace megalith

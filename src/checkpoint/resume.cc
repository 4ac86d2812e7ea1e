#include "checkpoint/resume.h"

#include <fmt/format.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/exchange.h"
#include "checkpoint/folder_kind.h"
#include "core/error.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

bool holds_checkpoint(const fs::path& root) {
  return fs::exists(root / kManifestFile) || !list_checkpoints(root).empty();
}

// Expected where load is save; other runs were meant to continue something.
void say_that_it_starts_afresh(const CheckpointOptions& options, Group& world, Logger& log) {
  if (options.load_hf || loads_where_it_saves(options)) {
    log.info("{} (load) holds no checkpoint: starting afresh", *options.load);
    return;
  }
  if (world.rank() != 0) return;
  const std::string line(78, '!');
  log.warn(
      "{}\n  {} (load) holds no checkpoint (in it: {})\n  STARTING AFRESH, from iteration 0 and new weights.\n"
      "  If that is not what you want, stop now and name another --load; --exit_on_missing_checkpoint refuses "
      "this.\n{}",
      line, *options.load, entries_text(*options.load), line);
}

}  // namespace

Resumed resume_from(const fs::path& folder, const CheckpointOpener& open, bool is_finetune,
                    const CheckpointOptions& options, CheckpointState& state, const Groups& groups, Logger& log) {
  const bool with_optimizer = !options.no_load_optim && !is_finetune;
  const TrainState present = state.train;
  std::set<std::string> begun_afresh;
  const Manifest manifest = load_checkpoint(
      open, state, groups,
      {.with_optimizer = with_optimizer, .begun_afresh = &begun_afresh, .nonfinite = options.nonfinite_weights()});
  if (is_finetune) state.train = present;
  log.info("loaded {} from {}{}", with_optimizer ? "weights and optimizer" : "weights", folder.string(),
           is_finetune ? ", starting at iteration 0" : fmt::format(" at iteration {}", manifest.train.iteration));
  note_begun_afresh(folder, begun_afresh, log);
  return {.folder = folder,
          .is_finetune = is_finetune,
          .has_optimizer = with_optimizer,
          .configuration = manifest.configuration,
          .differences = compare_configuration(manifest.configuration, state.configuration)};
}

bool loads_where_it_saves(const CheckpointOptions& options) {
  if (!options.load || !options.save) return false;
  std::error_code error;
  return fs::path(*options.load).lexically_normal() == fs::path(*options.save).lexically_normal() ||
         fs::equivalent(*options.load, *options.save, error);
}

void note_begun_afresh(const fs::path& folder, const std::set<std::string>& keys, Logger& log) {
  for (const std::string& key : keys)
    log.note("{} does not hold this run's {}: it begins afresh", folder.string(), key);
}

std::optional<Resumed> resume(const CheckpointOptions& options, CheckpointState& state, const Groups& groups,
                              Logger& log) {
  Group& world = *groups.world;
  const auto load_found = [&](const FoundCheckpoint& found, bool is_finetune) {
    return resume_from(
        found.folder, [&] { return open_checkpoint(found.folder); }, is_finetune, options, state, groups, log);
  };
  if (options.load) {
    if (const auto found = find_checkpoint(*options.load, options.ckpt_step, world, log)) {
      return load_found(*found, options.finetune);
    }
    if (options.exit_on_missing_checkpoint) {
      throw UserError(fmt::format("{} (load) holds no checkpoint", *options.load),
                      "check the folder, or leave --exit_on_missing_checkpoint away to start afresh");
    }
  }
  if (options.pretrained_checkpoint) {
    const auto found = find_checkpoint(*options.pretrained_checkpoint, std::nullopt, world, log);
    if (!found) {
      throw UserError(fmt::format("{} (pretrained_checkpoint) holds no checkpoint", *options.pretrained_checkpoint),
                      "give the folder that was given to --save");
    }
    return load_found(*found, /*is_finetune=*/true);
  }
  if (options.load) say_that_it_starts_afresh(options, world, log);
  return std::nullopt;
}

bool has_checkpoint(const CheckpointOptions& options, const Groups& groups) {
  Group& world = *groups.world;
  std::string answer;
  run_on_all(world, "checkpoint presence", [&] {
    if (world.rank() != 0) return;
    const bool found = (options.load && holds_checkpoint(*options.load)) ||
                       (options.pretrained_checkpoint && holds_checkpoint(*options.pretrained_checkpoint));
    answer = found ? "yes" : "no";
  });
  return broadcast_text(world, answer, 0, "checkpoint presence") == "yes";
}

}  // namespace megalith

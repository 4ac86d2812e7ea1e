// See run_folder.h.
#include "cli/run_folder.h"

#include <torch/version.h>

#include <filesystem>

#include "checkpoint/exchange.h"
#include "cli/build_commit.h"
#include "cli/log_copy.h"
#include "core/file.h"
#include "core/host.h"
#include "core/strings.h"
#include "device/device.h"
#include "device/gpu_architecture.h"
#include "metrics/run_stamp.h"
#include "train/outputs.h"

namespace megalith {
namespace {

// Writes configuration and record into the folder of the run, on rank 0.
std::unique_ptr<RunRecord> record_start(CommandContext& context, const Session& session, const Trainer& trainer,
                                        RunStart start) {
  const Resolved& resolved = *session.resolved;
  const RunFolder folder{*resolved.config.log.output_dir};
  const bool begins_anew = resolved.config.checkpoint.overwrite && trainer.iteration() == 0;
  start.version = kProgramVersion;
  start.commit = kBuildCommit;
  start.torch_version = TORCH_VERSION;
  start.command = context.words;
  std::error_code ignored;
  start.directory = std::filesystem::current_path(ignored).string();
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp, Axis::kEtp, Axis::kEp, Axis::kEdp}) {
    start.axes[std::string(name_of(axis))] = session.groups.of(axis)->size();
  }
  if (session.world) {
    start.back_end = session.device.is_cpu()                              ? "gloo"
                     : architecture_of(session.device).starts_with("gfx") ? "rccl"
                                                                          : "nccl";
    start.interface = session.world->interface();
    start.meeting_ms = session.meeting_ms;
  }
  start.device = describe_device(session.device);
  start.model = trainer.model_text();
  start.options = run_options(resolved);
  start.first_iteration = start.last_iteration = trainer.iteration();
  if (begins_anew && resolved.options->find("tensorboard_dir")->source().where == "output_dir") {
    remove_tree(folder.tensorboard());
  }
  const auto lies_here = [&](const char* option) {
    return resolved.options->find(option)->source().where == "output_dir";
  };
  if (begins_anew && lies_here("wandb_save_dir")) remove_tree(folder.wandb());
  if (begins_anew && lies_here("mlflow_dir")) remove_tree(folder.mlflow());
  make_directories(folder.root);
  write_file_atomic(folder.configuration(),
                    fmt::format("# megalith train --config {}\n# Relative paths count from {}\n\n{}",
                                folder.configuration().string(), start.directory, run_configuration(resolved)));
  return std::make_unique<RunRecord>(folder.record(), std::move(start), begins_anew, context.log);
}

}  // namespace

RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer) {
  const Resolved& resolved = *session.resolved;
  if (!resolved.config.log.output_dir) return {};
  Group& world = *session.groups.world;
  RunStart start;
  start.run_id = broadcast_text(world, world.is_first() ? make_run_id() : "", 0, "run id");
  start.hosts = gather_texts(world, host_name(), "hosts");
  RunFolderState state{.run_id = start.run_id, .record = nullptr};
  run_on_all(world, "run folder", [&] {
    if (world.is_first()) state.record = record_start(context, session, trainer, std::move(start));
  });
  return state;
}

void open_log(CommandContext& context, const Resolved& resolved, const Launch& launch) {
  const std::optional<std::string>& path = resolved.config.log.log_file;
  if (!path || context.log_copy == nullptr) return;
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  const bool is_first = launch.rank == 0;
  context.log_copy->open(*path, is_first && checkpoint.overwrite && !checkpoint.load);
  if (is_first) context.log_copy->write(fmt::format("== {}: {}\n", utc_timestamp(), join(context.words, " ")));
}

}  // namespace megalith

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

// What this start is, beside what the ranks have said of themselves.
void describe(RunStart& start, const CommandContext& context, const Session& session, const Trainer& trainer) {
  const Resolved& resolved = *session.resolved;
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
}

// Removes what an earlier run left, and writes the configuration.
void prepare_run_folder(const RunFolder& folder, const Resolved& resolved, const RunStart& start, bool begins_anew) {
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
}

// Where the record goes: into the folder of the run, and where record_file says.
std::vector<std::filesystem::path> record_files(const LogOptions& log) {
  std::vector<std::filesystem::path> files;
  if (log.output_dir) files.push_back(RunFolder{*log.output_dir}.record());
  if (!log.record_file) return files;
  const auto whole = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  };
  if (files.empty() || whole(files.front()) != whole(*log.record_file)) files.emplace_back(*log.record_file);
  return files;
}

}  // namespace

void RunFolderState::end(const std::string& status, int64_t last_iteration, int64_t exit_code) {
  for (const std::unique_ptr<RunRecord>& record : records) record->end(status, last_iteration, exit_code);
}

RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer) {
  const Resolved& resolved = *session.resolved;
  const LogOptions& log = resolved.config.log;
  if (!log.output_dir && !log.record_file) return {};
  Group& world = *session.groups.world;
  RunStart start;
  start.run_id = broadcast_text(world, world.is_first() ? make_run_id() : "", 0, "run id");
  start.hosts = gather_texts(world, host_name(), "hosts");
  RunFolderState state{.run_id = start.run_id, .records = {}};
  run_on_all(world, "run folder", [&] {
    if (!world.is_first()) return;
    const bool begins_anew = resolved.config.checkpoint.overwrite && trainer.iteration() == 0;
    describe(start, context, session, trainer);
    if (log.output_dir) prepare_run_folder(RunFolder{*log.output_dir}, resolved, start, begins_anew);
    for (const std::filesystem::path& file : record_files(log)) {
      state.records.push_back(std::make_unique<RunRecord>(file, start, begins_anew, context.log));
    }
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

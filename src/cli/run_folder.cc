#include "cli/run_folder.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/exchange.h"
#include "cli/build_commit.h"
#include "cli/log_copy.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/host.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "core/visible_text.h"
#include "device/device.h"
#include "device/gpu_architecture.h"
#include "metrics/run_stamp.h"
#include "train/outputs.h"

namespace megalith {
namespace {

// Describes this start, beyond what the ranks reported themselves.
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

// Removes an earlier run's files and writes the configuration.
void prepare_run_folder(const RunFolder& folder, const Resolved& resolved, const RunStart& start, bool begins_anew) {
  if (begins_anew && resolved.options->of(resolved.config.log.tensorboard_dir).source().where == "output_dir") {
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
                                visible_text(folder.configuration().string()), visible_text(start.directory),
                                run_configuration(resolved)));
}

// The record's paths: in the run's folder, and at record_file.
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

// ".page.html.tmp-4711-7f3a10-187c0d2e": written before a rename. One that ends in .old may be the only whole copy of a
// folder, and stays.
bool is_unfinished(std::string_view name) {
  constexpr std::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string_view::npos) return false;
  const std::string_view number = name.substr(mark + kMark.size());
  return std::count(number.begin(), number.end(), '-') == 2 &&
         number.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

bool is_probe(std::string_view name) {
  return name.starts_with(".megalith_probe_") || name.starts_with(".seen_by_all_");
}

// Removes files of killed runs in a folder held by this one. Probes are useless once made, so any next to the folder go
// too.
void remove_unfinished(const std::filesystem::path& folder, Logger& log) {
  remove_leftovers(folder, log, /*before_step=*/{});
  for (const std::string& name : names_in(folder)) {
    if (!is_unfinished(name) && !is_probe(name)) continue;
    if (try_remove_tree(folder / name)) {
      log.info("removed {}, left by a run that was stopped", (folder / name).string());
    }
  }
  const std::filesystem::path parent = std::filesystem::absolute(folder).lexically_normal().parent_path();
  for (const std::string& name : names_in(parent)) {
    if (name.starts_with(".megalith_probe_")) try_remove_tree(parent / name);
  }
}

}  // namespace

void RunFolderState::end(const std::string& status, int64_t last_iteration, int64_t exit_code) {
  for (const std::unique_ptr<RunRecord>& record : records) record->end(status, last_iteration, exit_code);
}

RunHold hold_run_folders(CommandContext& context, const Launch& launch, const Config& config, const StopRequest& stop) {
  RunHold hold;
  hold.run_id = make_run_id();
  const std::string meeting =
      launch.world_size > 1 ? fmt::format("{}:{}", launch.master_address, launch.master_port) : "";
  const auto before_sleep = [&] {
    if (stop.load() == 0) return;
    context.log.info("stopped by a signal while waiting for a folder; nothing was begun");
    throw SilentExit{kExitSignal};
  };
  for (const auto& [option, path] : held_folders(config)) {
    if (check_writable(option, path, /*is_folder=*/true)) continue;
    if (launch.rank > 0) {
      // Rank 0 waits in the lock itself and appears as the holder once it has it.
      while (config.log.wait_for_folder) {
        const std::optional<FolderHolder> holder = find_holder(path);
        if (!holder || holder->meeting == meeting) break;
        before_sleep();
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
      continue;
    }
    FolderLockSettings settings{.self = own_holder(hold.run_id, meeting, utc_timestamp()),
                                .waits = config.log.wait_for_folder,
                                .note = [&log = context.log](const std::string& text) { log.note("{}", text); },
                                .before_sleep = before_sleep};
    settings.on_lost = [&log = context.log, path = path](const FolderHolder& other) {
      log.error("{} was taken over by {}: this process stood still for too long, and ends", path, other.text());
      ::_exit(kExitFailure);  // anything written now would mix with the other's
    };
    hold.locks.push_back(std::make_unique<FolderLock>(path, fmt::format("{} {}", option, path), std::move(settings)));
    hold.uncleared.push_back(path);
  }
  if (config.train.faults.fault_tolerance == FaultTolerance::kNone || launch.world_size == 1) {
    clear_run_folders(hold, context.log);
    hold.uncleared.clear();
  }
  return hold;
}

void clear_run_folders(const RunHold& hold, Logger& log) {
  for (const std::filesystem::path& folder : hold.uncleared) remove_unfinished(folder, log);
}

RunFolderState begin_run_folder(CommandContext& context, const Session& session, const Trainer& trainer,
                                const RunHold& hold) {
  const Resolved& resolved = *session.resolved;
  const LogOptions& log = resolved.config.log;
  if (!log.output_dir && !log.record_file) return {};
  Group& world = *session.groups.world;
  RunStart start;
  start.run_id = broadcast_text(world, world.is_first() ? hold.run_id : "", 0, "run id");
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
  if (is_first)
    context.log_copy->write(fmt::format("== {}: {}\n", utc_timestamp(), visible_text(join(context.words, " "))));
}

}  // namespace megalith

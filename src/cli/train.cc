// megalith train: pre-trains or fine-tunes.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "cli/build_commit.h"
#include "cli/help.h"
#include "cli/log_copy.h"
#include "cli/print.h"
#include "cli/run_folder.h"
#include "cli/session.h"
#include "cli/train_eras.h"
#include "cli/within_memory.h"
#include "config/help.h"
#include "core/file.h"
#include "core/json.h"
#include "device/device.h"
#include "device/peak_flops.h"
#include "kinds/kinds.h"
#include "models/families.h"
#include "train/dry_run.h"
#include "train/layout_search.h"
#include "train/memory_estimate.h"
#include "train/outputs.h"
#include "train/report.h"
#include "train/sinks.h"
#include "train/trainer.h"
#include "verify/type_check.h"

namespace megalith {
namespace {

// A run asked to stop does so at its next step boundary, after a checkpoint; the first boundary is before the first
// step. A rank still waiting for others cannot agree with them: if they do not come soon, it ends.
constexpr unsigned kMeetingGrace_s = 5;  // launchers kill after some thirty seconds

// A signal handler can reach nothing else.
StopRequest g_stop{0};
std::atomic<bool> g_is_meeting{false};

void on_signal(int number) {
  // A second signal ends the process the usual way.
  g_stop.store(number);
  std::signal(number, SIG_DFL);
  if (g_is_meeting.load()) ::alarm(kMeetingGrace_s);
}

void on_alarm(int) {
  if (!g_is_meeting.load()) return;
  constexpr std::string_view kMessage =
      "error: stopped by a signal while waiting for the other ranks; there was nothing to save\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(kExitFailure);
}

void catch_signals() {
  std::signal(SIGALRM, on_alarm);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  // nohup ignores the first; keep what is ignored. Batch systems send the others before a job's end.
  for (const int number : {SIGHUP, SIGUSR1, SIGUSR2}) {
    if (std::signal(number, on_signal) == SIG_IGN) std::signal(number, SIG_IGN);
  }
  std::signal(SIGPIPE, SIG_IGN);  // the printing code notices that its reader is gone
}

// Without a log the run could not report anything: it stops as at a signal.
void on_closed_output(CommandContext& context) {
  if (context.log_copy != nullptr && context.log_copy->is_open()) {
    return context.log.note("standard output is closed: the run goes on, and its log has what it would print");
  }
  context.log.note("standard output is closed: the run stops after a checkpoint; with --log_file it would go on");
  int none = 0;
  g_stop.compare_exchange_strong(none, SIGPIPE);
}

bool is_tolerant(const Resolved& run, const Launch& launch) {
  return run.config.train.faults.fault_tolerance != FaultTolerance::kNone && launch.world_size > 1;
}

Session meet(CommandContext& context, std::unique_ptr<Resolved> resolved, const Launch& launch) {
  g_is_meeting.store(launch.world_size > 1);
  // The signal may have come earlier.
  if (g_is_meeting.load() && g_stop.load() != 0) ::alarm(kMeetingGrace_s);
  const bool outlives_ranks = is_tolerant(*resolved, launch);
  Session session = start_session(context, std::move(resolved), launch, outlives_ranks);
  g_is_meeting.store(false);
  ::alarm(0);
  return session;
}

const char* status_text(StopReason reason) {
  if (reason == StopReason::kSignal) return "stopped by a signal";
  return reason == StopReason::kFinished ? "finished" : "stopped as configured";
}

// A record of a run whose ranks change, which is none of its ends.
constexpr const char* kOtherRanks = "went on with other ranks";

// Null if the run goes on in another era.
std::optional<int> train(CommandContext& context, Session& session, const MemoryEstimate& estimate,
                         const RunHold& hold, Trainer& trainer, TrainingEras* eras = nullptr) {
  if (eras == nullptr) {
    trainer.load();
  } else {
    eras->begin(trainer);
  }
  trainer.open_data();
  if (eras == nullptr || eras->is_first()) {
    context.log.block(
        fmt::format("program    {}\n{}", program_text(), trainer.report(session.device_text(), &estimate)));
    if (const auto gpu = gpu_of(session.device); gpu && session.is_reporting()) {
      const std::string suggestion = suggested_layout(*session.resolved, gpu->name, session.config_root);
      if (!suggestion.empty()) context.log.note("{}", suggestion);
    }
  }
  const int64_t first_iteration = trainer.iteration();
  RunFolderState folder = begin_run_folder(context, session, trainer, hold);
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  if (session.is_reporting()) {
    SinkSettings settings{.model_text = trainer.model_text(),
                          .iteration = trainer.iteration(),
                          .run_id = folder.run_id,
                          .also_printed = {},
                          .era_texts = eras == nullptr ? std::vector<std::string>{} : eras->texts(),
                          .command = context.words,
                          .commit = kBuildCommit};
    settings.on_closed_output = [&context] { on_closed_output(context); };
    if (context.log_copy != nullptr) {
      settings.also_printed = [&copy = *context.log_copy](std::string_view text) { copy.write(text); };
    }
    sinks = make_sinks(*session.resolved, settings, context.log);
  }
  StopReason reason = StopReason::kFinished;
  try {
    reason = trainer.run(std::move(sinks));
  } catch (const std::exception& error) {
    if (eras != nullptr && session.world->is_lost()) {
      folder.end(kOtherRanks, trainer.iteration(), kExitSuccess);
      throw;
    }
    // kExitUserError means that nothing was begun.
    const bool has_begun =
        trainer.iteration() > first_iteration || trainer.iteration() >= session.resolved->derived.train_iters;
    const bool is_late = has_begun && dynamic_cast<const UserError*>(&error) != nullptr;
    folder.end(fmt::format("failed: {}", error.what()), trainer.iteration(),
               is_late ? kExitFailure : exit_code_of(error));
    if (is_late) throw std::runtime_error(error.what());
    throw;
  }
  if (reason == StopReason::kNextEra) {
    folder.end(kOtherRanks, trainer.iteration(), kExitSuccess);
    return std::nullopt;
  }
  const int exit_code = reason == StopReason::kSignal ? kExitSignal : kExitSuccess;
  folder.end(status_text(reason), trainer.iteration(), exit_code);
  if (const RateFinder* finder = trainer.rate_finder(); finder != nullptr && session.is_reporting()) {
    write_file_atomic(finder->file(), finder->picture());
    print_out("{}\npicture: {}\n", finder->text(), finder->file());
  }
  try {
    session.finish();
  } catch (const CommunicationError& error) {
    if (eras == nullptr) throw;
    context.log.warn("{}", error.what());  // the run's work is done
  }
  if (reason == StopReason::kSignal) {
    context.log.info("stopped by a signal after iteration {}{}", trainer.iteration(),
                     trainer.is_saved() ? ", which is saved" : "; nothing was saved");
  }
  return exit_code;
}

// A run that outlives its ranks, era by era.
int train_in_eras(CommandContext& context, Session& session, const Launch& launch, const MemoryEstimate& estimate,
                  const RunHold& hold) {
  TrainingEras eras(context, session, launch, g_stop);
  try {
    if (session.world->is_late()) {
      eras.next();
    } else {
      clear_run_folders(hold, context.log);
    }
    while (true) {
      std::unique_ptr<Trainer> trainer;
      try {
        eras.connect();
        trainer = std::make_unique<Trainer>(*session.resolved, session.groups, session.device, context.log, g_stop,
                                            session.watch, eras.hooks());
        if (const std::optional<int> code = train(context, session, estimate, hold, *trainer, &eras)) return *code;
      } catch (const std::exception&) {
        if (!session.world->is_lost()) throw;
      }
      eras.keep(std::move(trainer));
      eras.next();
    }
  } catch (const RunIsOver& over) {
    context.log.warn("rank {} was not part of the run any more: {}", launch.rank, over.what());
    return over.has_ended() ? kExitSuccess : kExitFailure;
  } catch (const CommunicationError& error) {
    throw CommunicationError(fmt::format("{}\n  {}", error.what(), newest_checkpoint_text(session.resolved->config)));
  }
}

}  // namespace

int run_train(CommandContext& context) {
  catch_signals();
  const Launch launch = join_launch(context);
  RunHold hold;
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    const CommandNeeds needs{.opens_data = true,
                             .weights = CommandNeeds::Weights::kOptional,
                             .writes_run = true,
                             .hold_folders =
                                 [&](const Config& config) {
                                   if (config.train.dry_run) return;
                                   hold = hold_run_folders(context, launch, config, g_stop);
                                 },
                             .more_checks =
                                 [](Resolved& run) {
                                   for (std::string& note : block_index_notes(*run.options)) {
                                     run.notes.push_back(std::move(note));
                                   }
                                   return check_outputs(run);
                                 }};
    auto run = resolve_config(all_kinds(), context.config_inputs(), launch.world_size, /*extra=*/{}, needs);
    // One rank is enough: the others end with it.
    const bool checks_types = run->config.train.faults.check_types && launch.rank == 0 && !run->wants_help;
    if (checks_types) throw_if_any(type_errors(*run));
    return run;
  });
  if (resolved->wants_help) {
    return print_help(context, "usage: megalith train --config FILE [--option value ...]", *resolved->options);
  }
  if (resolved->config.train.dry_run) {
    for (const std::string& note : resolved->notes) context.log.note("{}", note);
    print_out("{}", dry_run_text(*resolved, make_dry_run(*resolved, context.config_root)));
    std::fflush(stdout);
    if (launch.world_size > 1) tell_dry_run(context, launch);
    return kExitSuccess;
  }
  check_num_nodes(launch, context.environment);
  open_log(context, *resolved, launch);
  Session session = meet(context, std::move(resolved), launch);
  const Resolved& run = *session.resolved;
  if (run.config.log.explain_options || run.config.log.verbose) context.log.block(differing_options(*run.options));
  return run_in_session(session, [&] {
    return run_within_memory(session, launch, estimate_memory, [&](const MemoryEstimate& estimate) {
      if (is_tolerant(*session.resolved, launch)) return train_in_eras(context, session, launch, estimate, hold);
      Trainer trainer(*session.resolved, session.groups, session.device, context.log, g_stop, session.watch);
      return *train(context, session, estimate, hold, trainer);
    });
  });
}

std::vector<CommandOptions> train_options() { return {options_of<Config>("train")}; }

}  // namespace megalith

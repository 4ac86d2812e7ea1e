// megalith train: pre-trains or fine-tunes.
#include <csignal>
#include <cstdio>

#include "cli/session.h"
#include "core/help.h"
#include "core/json.h"
#include "device/device.h"
#include "models/families.h"
#include "train/report.h"
#include "train/sinks.h"
#include "train/trainer.h"

namespace megalith {
namespace {

StopRequest g_stop{0};  // a signal handler can reach nothing else

void on_signal(int number) {
  // A second signal ends the process the usual way.
  g_stop.store(number);
  std::signal(number, SIG_DFL);
}

int dry_run(const Resolved& resolved) {
  Groups groups = Groups::single();
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  const ModelNumbers numbers = count_model(*built.model, resolved);
  fmt::print("{}\n{}\ndry run: nothing was allocated\n", resolved_yaml(*resolved.options, Shown::kNonDefault),
             startup_report(resolved, numbers, nullptr, "not chosen in a dry run"));
  return kExitSuccess;
}

}  // namespace

int run_train(CommandContext& context) {
  std::unique_ptr<Resolved> resolved = resolve_config(context.config_inputs(), /*world_size=*/1);
  if (resolved->wants_help) {
    fmt::print("usage: megalith train --config FILE [--option value ...]\n\n{}", help_text(*resolved->options));
    return kExitSuccess;
  }
  if (resolved->config.train.dry_run) {
    for (const std::string& note : resolved->notes) context.log.note("{}", note);
    return dry_run(*resolved);
  }
  Session session = start_session(context, std::move(resolved));
  Trainer trainer(*session.resolved, session.groups, session.device, context.log, g_stop);
  trainer.load();
  context.log.block(trainer.report(describe_device(session.device)));
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  const StopReason reason = trainer.run(make_sinks(*session.resolved, trainer.model_text(), context.log));
  if (reason == StopReason::kSignal) {
    context.log.info("stopped by a signal after iteration {}", trainer.iteration());
    return kExitSignal;
  }
  return kExitSuccess;
}

}  // namespace megalith

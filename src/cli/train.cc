// megalith train: pre-trains or fine-tunes.
#include <csignal>
#include <cstdio>

#include "cli/session.h"
#include "comm/fake_group.h"
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
  // As rank 0 of the world it resolves for.
  const Groups groups(Mesh::from_options(resolved.config.parallel, resolved.derived.world_size), /*world_rank=*/0,
                      fake_group_factory(/*rank=*/0));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  const ModelNumbers numbers = count_model(*built.model, resolved);
  fmt::print("{}\n{}\ndry run: nothing was allocated\n", resolved_yaml(*resolved.options, Shown::kNonDefault),
             startup_report(resolved, numbers, nullptr, "not chosen in a dry run"));
  return kExitSuccess;
}

int train(CommandContext& context, Session& session) {
  Trainer trainer(*session.resolved, session.groups, session.device, context.log, g_stop);
  trainer.load();
  context.log.block(trainer.report(describe_device(session.device)));
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  if (session.is_reporting()) sinks = make_sinks(*session.resolved, trainer.model_text(), context.log);
  const StopReason reason = trainer.run(std::move(sinks));
  session.finish();
  if (reason == StopReason::kSignal) {
    context.log.info("stopped by a signal after iteration {}", trainer.iteration());
    return kExitSignal;
  }
  return kExitSuccess;
}

}  // namespace

int run_train(CommandContext& context) {
  const Launch launch = discover_launch(context.environment);
  context.log.set_rank(launch.rank, launch.world_size);  // errors of the configuration come from every rank
  std::unique_ptr<Resolved> resolved = resolve_config(context.config_inputs(), launch.world_size);
  if (resolved->wants_help) {
    fmt::print("usage: megalith train --config FILE [--option value ...]\n\n{}", help_text(*resolved->options));
    return kExitSuccess;
  }
  if (resolved->config.train.dry_run) {
    for (const std::string& note : resolved->notes) context.log.note("{}", note);
    return dry_run(*resolved);
  }
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] { return train(context, session); });
}

}  // namespace megalith

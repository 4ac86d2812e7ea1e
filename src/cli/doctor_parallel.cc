#include "cli/doctor_parallel.h"

#include <fmt/ranges.h>

#include <cstdio>

#include "cli/help.h"
#include "cli/layout_text.h"
#include "cli/print.h"
#include "cli/session.h"
#include "core/time.h"
#include "kinds/kinds.h"
#include "verify/parallel_check.h"
#include "verify/toy_config.h"

namespace megalith {
namespace {

constexpr const char* kDoctorParallelUsage =
    "usage: megalith doctor --parallel --config FILE [--option value ...]\n\n"
    "Compares losses, gradients and parameters of the configured parallel layout, at toy width, with one rank's.\n"
    "The options are those of megalith train; --dry_run_world_size N says how many ranks the run will have.";

// Most ranks run as threads of this process; a larger world is reduced, which the report mentions.
constexpr int64_t kMostThreadRanks = 32;
constexpr double kQuiet_s = 2;  // anything faster needs no progress line

void print_header(const ToyWorld& world, const ToyConfig& toy, bool has_threads) {
  const Resolved& layout = *toy.layout;
  std::string schedule;
  if (layout.derived.pipeline.num_ranks > 1) {
    schedule = fmt::format("\nschedule      {}, {} stage(s) a rank, {}",
                           layout.derived.pipeline.schedule(narrow<int>(layout.derived.num_microbatches)).name,
                           layout.derived.pipeline.num_chunks, *layout.config.pipeline.pipeline_model_parallel_layout);
  }
  print_out("layout        {}: {} rank(s) as {}{}\n", layout_text(layout, world.world_size), world.world_size,
             has_threads ? "threads" : "processes", schedule);
  print_out("toy           {}\n", toy.text());
  for (const std::string& cut : world.cuts) print_out("cut           {}\n", cut);
  if (!toy.set_aside.empty()) print_out("left out      {}\n", fmt::join(toy.set_aside, ", "));
  std::fflush(stdout);
}

int print_report(const ParallelReport& report, double elapsed_s) {
  if (!report.is_ok()) {
    print_out("FAILED        the layout differs from one rank\n{}\n", report.failure);
    return kExitFailure;
  }
  print_out(
      "ok            loss of {} steps, {} gradients and {} parameters agree with one rank, largest relative difference "
      "{:.1g} in float64; the configured operators agree in float32{} ({:.1f} s)\n",
      report.num_steps, report.num_gradients, report.num_parameters, report.worst,
      report.has_documents ? "; documents of a row do not touch" : "", elapsed_s);
  return kExitSuccess;
}

int check_in_processes(CommandContext& context, const Resolved& user, const Launch& launch) {
  const ToyWorld world{.parallel = user.config.parallel, .world_size = launch.world_size, .cuts = {}};
  ParallelCheck check(user, world);
  // Groups come from the toy's layout, process settings from the user.
  ToyConfig met = make_toy_config(user, world, ToyPrecision::kExact, /*num_steps=*/1);
  met.layout->notes = user.notes;
  met.layout->exports = user.exports;
  Session session = start_session(context, std::move(met.layout), launch);
  return run_in_session(session, [&] {
    if (launch.rank == 0) print_header(world, check.toy(), /*has_threads=*/false);
    const Stopwatch watch;
    const ParallelReport report = check.run_as_rank(session.groups, session.device);
    session.finish();
    if (launch.rank == 0) return print_report(report, watch.elapsed_s());
    if (!report.is_ok()) context.log.error("{}", report.failure);
    return report.is_ok() ? kExitSuccess : kExitFailure;
  });
}

int check_in_threads(CommandContext& context, const Resolved& user, std::optional<int64_t> world_size) {
  for (const std::string& note : user.notes) context.log.note("{}", note);
  const ToyWorld world = make_toy_world(user.config.parallel, world_size, kMostThreadRanks);
  const Stopwatch watch;
  ParallelCheck check(user, world, [&](const std::string& what) {
    if (watch.elapsed_s() > kQuiet_s) context.log.info("{:.0f} s: {}", watch.elapsed_s(), what);
  });
  print_header(world, check.toy(), /*has_threads=*/true);
  const ParallelReport report = check.run_as_threads();
  return print_report(report, watch.elapsed_s());
}

}  // namespace

int run_doctor_parallel(CommandContext& context) {
  if (context.wants_help()) {
    const Resolved options(all_kinds());
    return print_help(context, kDoctorParallelUsage, *options.options);
  }
  const Launch launch = join_launch(context);
  const CheckedConfig checked = resolve_for_check(context.config_inputs(), launch.world_size);
  if (launch.world_size > 1) return check_in_processes(context, *checked.resolved, launch);
  return check_in_threads(context, *checked.resolved, checked.world_size);
}

}  // namespace megalith

#include "cli/doctor_types.h"

#include <fmt/ranges.h>

#include "cli/help.h"
#include "cli/layout_text.h"
#include "cli/print.h"
#include "core/time.h"
#include "kinds/kinds.h"
#include "verify/toy_config.h"
#include "verify/type_check.h"

namespace megalith {
namespace {

constexpr const char* kDoctorTypesUsage =
    "usage: megalith doctor --types --config FILE [--option value ...]\n\n"
    "Follows what each rank holds of every tensor of a training step (equal on all ranks of an axis, a part, a\n"
    "summand) through operators, collectives and gradients: for a sum or a gathering that is missing, doubled or\n"
    "over other ranks, it names the two places that do not fit. Only shapes are computed.\n"
    "The options are those of megalith train; --dry_run_world_size N says how many ranks the run will have.";

}  // namespace

int run_doctor_types(CommandContext& context) {
  if (context.wants_help()) {
    const Resolved options(all_kinds());
    return print_help(context, kDoctorTypesUsage, *options.options);
  }
  const CheckedConfig checked = resolve_for_check(context.config_inputs(), /*launched_ranks=*/1);
  const Resolved& run = *checked.resolved;
  for (const std::string& note : run.notes) context.log.note("{}", note);
  const Stopwatch watch;
  const TypeReport report = check_types(run);
  const std::string axes = report.axes.empty() ? "none" : fmt::format("{}", fmt::join(report.axes, ", "));
  print_out("layout        {}: {} rank(s)\n", layout_text(run, run.derived.world_size), run.derived.world_size);
  print_out("axes          {}\n", axes);
  if (!report.is_ok()) {
    print_out("FAILED        {} place(s) where distributions do not fit\n", report.findings.size());
    for (const TypeFinding& finding : report.findings) print_out("{}\n", finding.text());
    return kExitFailure;
  }
  print_out(
      "ok            {} operators, {} collectives, {} gradients and {} parameters fit on every axis, in {} unit(s) of "
      "{} pipeline rank(s) ({:.1f} s)\n",
      report.counts.operators, report.counts.collectives, report.counts.gradients, report.counts.parameters,
      report.num_units, report.num_stages, watch.elapsed_s());
  return kExitSuccess;
}

}  // namespace megalith

// megalith plan --failures: how much of months becomes progress on machines that fail.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/plan_cluster.h"
#include "cli/print.h"
#include "config/option.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "planner/failures.h"

namespace megalith {
namespace {

constexpr const char* kPlanFailuresUsage = "usage: megalith plan --failures [--json] [--option value ...]";

struct PlanFailuresOptions : FailureOptions {
  bool json = false;

  void visit(OptionVisitor& v) {
    FailureOptions::visit(v);
    v.field("json", json, "Print one JSON object.");
  }
};

}  // namespace

int run_plan_failures(CommandContext& context) {
  PlanFailuresOptions own;
  OptionSet options(own);
  const auto words = context.read_words(options, kPlanFailuresUsage);
  if (!words) return kExitSuccess;
  if (!words->empty()) throw UserError(fmt::format("plan --failures takes no word {}", words->front()), kPlanFailuresUsage);
  const bool is_searched = own.checkpoint_interval_s <= 0;
  const Goodput found = is_searched ? find_best_interval(own) : simulate_failures(own, own.checkpoint_interval_s);
  const double rest = 1 - found.effective - found.saving - found.lost_work - found.restarting - found.fewer_replicas -
                      found.stragglers;
  if (own.json) {
    print_out("{}", dump_json_pretty(OrderedJson{{"effective", found.effective},
                                                 {"checkpoint_interval_s", found.interval_s},
                                                 {"young_daly_interval_s", optimal_interval_s(own)},
                                                 {"failures", found.failures},
                                                 {"saving", found.saving},
                                                 {"lost_work", found.lost_work},
                                                 {"restarting", found.restarting},
                                                 {"fewer_replicas", found.fewer_replicas},
                                                 {"stragglers", found.stragglers}}));
    return kExitSuccess;
  }
  print_out("machine    {} GPUs, a failure every {}; {} in {:g} days\n", own.gpus,
            format_duration(own.gpu_mtbf_hours * 3600 / static_cast<double>(own.gpus)), found.failures, own.days);
  print_out("saves      every {} of training{}; Young's and Daly's optimum is {}\n", format_duration(found.interval_s),
            is_searched ? ", the best found" : "", format_duration(optimal_interval_s(own)));
  print_out("effective  {:.1f} % of the time is progress\n", 100 * found.effective);
  const std::pair<const char*, double> rows[] = {
      {"restarts", found.restarting},        {"work lost", found.lost_work}, {"saves", found.saving},
      {"replicas missing", found.fewer_replicas}, {"stragglers", found.stragglers}, {"unfinished", rest}};
  for (const auto& [name, share] : rows) {
    if (share > 5e-4) print_out("  {:<18} {:>5.1f} %\n", name, 100 * share);
  }
  return kExitSuccess;
}

CommandOptions plan_failures_options() {
  PlanFailuresOptions own;
  return command_options("plan --failures", OptionSet(own));
}

}  // namespace megalith
